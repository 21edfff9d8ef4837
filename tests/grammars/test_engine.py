"""A real scheduler and a real sampler over made-up logits: answers keep their form whatever happens to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from zlib import crc32

import numpy as np
import pytest

from chairlift.core.engine import Engine
from chairlift.core.scheduler import Scheduler
from chairlift.core.structured import StructuredOutputs
from chairlift.core.types import CacheShape, Finish, FinishReason, Limits, Request, SamplingParams, StepPlan, StepResult
from chairlift.grammars.store import Grammars
from chairlift.sampling import Sampler
from grammars.small import END, OTHER_END, TOKENS, VOCABULARY, PlainChecker, text_of

EXPRESSION = r"(ab|c){2,9}-[0-9]{1,4}(red|green)?"
CHOICES = ("red", "green", "abcabcabc", "ab")


@dataclass
class Device:
    """Logits that are a function of the tokens before them; samples with the real thing."""

    sampler: Sampler

    def __post_init__(self) -> None:
        self.rows: dict[int, list[int]] = {}

    def submit(self, plan: StepPlan) -> Device:
        for slot in plan.leaves:
            self.sampler.leave(slot)
        for join in plan.joins:
            self.rows[join.slot] = list(join.tokens)
            self.sampler.join(join.slot, join.request, join.choice, join.tokens)
        self.slots = [*plan.decodes, *(chunk.slot for chunk in plan.chunks if chunk.samples)]
        return self

    def result(self) -> StepResult:
        if not self.slots:
            return StepResult([])
        self.sampler.prepare(self.slots)
        logits = np.stack([self.logits(self.rows[slot]) for slot in self.slots])
        sampled = self.sampler.sample(self.slots, logits, None)
        for slot, token in zip(self.slots, sampled.tokens, strict=True):
            self.rows[slot].append(token)
        return StepResult(sampled.tokens, sampled.logprobs, {}, sampled.errors)

    def logits(self, tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        draw = np.random.default_rng(crc32(repr(tokens).encode()))
        return draw.normal(size=len(TOKENS)).astype(np.float32) * 2


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(VOCABULARY, lambda _: [], PlainChecker)
    yield grammars
    grammars.close()


Outcome = tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], Finish]]


def run(grammars: Grammars, requests: list[Request], *, num_blocks: int = 400, max_num_seqs: int = 8) -> Outcome:
    """Until all are over: tokens and finishes by answer."""
    told: SimpleQueue[object] = SimpleQueue()
    sampler = Sampler(max_num_seqs, len(TOKENS), entropy=b"e", constraints=grammars.matcher)
    limits = Limits(max_num_seqs, 64, 120)
    engine = Engine(Scheduler(limits, CacheShape(num_blocks, 4), vocab_size=len(TOKENS)), Device(sampler))
    tokens: dict[tuple[int, int], list[int]] = {(r.id, choice): [] for r in requests for choice in range(r.n)}
    finishes: dict[tuple[int, int], Finish] = {}
    for request in requests:
        if grammars.ask(request, told.put) is None:
            told.get(timeout=10)
        engine.add(request)
    now = 0.0
    while len(finishes) < len(tokens):
        output = engine.step(now := now + 0.01)
        assert output is not None
        for key, token in zip(output.keys, output.tokens, strict=True):
            tokens[key].append(token)
        for finish in output.finishes:
            finishes[finish.id, finish.choice] = finish
            grammars.release(finish.id, 1)
    assert grammars.num_held == 0
    return tokens, finishes


def asked(request_id: int, **fields: object) -> Request:
    params = {"max_tokens": 60, "temperature": 1.0, "seed": request_id} | fields
    n = int(params.pop("n", 1))  # type: ignore[call-overload]
    return Request(
        request_id,
        [65 + request_id % 20, 66, 67],
        SamplingParams(**params),  # type: ignore[arg-type]
        n=n,
        eos_token_ids=(END, OTHER_END),
    )


def mixed(count: int) -> list[Request]:
    """Every third is free, and the rest have a form."""
    forms = [None, StructuredOutputs(regex=EXPRESSION), StructuredOutputs(choice=CHOICES)]
    return [asked(i, structured_outputs=forms[i % 3], n=1 + i % 2) for i in range(count)]


def check_forms(requests: list[Request], outcome: Outcome) -> None:
    tokens, finishes = outcome
    for request in requests:
        form = request.params.structured_outputs
        for choice in range(request.n):
            finish, said = finishes[request.id, choice], tokens[request.id, choice]
            text = text_of(said).decode("utf-8", "replace")
            if form is None:
                continue
            assert finish.reason is FinishReason.STOP
            assert finish.error is None
            assert said[-1] in (END, OTHER_END)
            assert text in CHOICES if form.choice else re.fullmatch(EXPRESSION, text), text


def test_src_vllm_43894_answers_keep_their_form_and_others_are_what_they_were(grammars: Grammars) -> None:
    """Row 61 in the whole engine: together and alone, the same tokens."""
    requests = mixed(24)
    together = run(grammars, requests)
    check_forms(requests, together)
    for request in requests:
        tokens, _ = run(grammars, [request])
        assert all(tokens[key] == together[0][key] for key in tokens)


@pytest.mark.parametrize("num_blocks", [30, 34, 40, 60])
def test_src_vllm_16832_preempted_and_resumed_an_answer_goes_on_where_it_was(
    grammars: Grammars, num_blocks: int
) -> None:
    """Row 62: computed anew, the grammar is where the answer is."""
    requests = mixed(24)
    plenty, scarce = run(grammars, requests), run(grammars, requests, num_blocks=num_blocks)
    assert scarce[0] == plenty[0]
    check_forms(requests, scarce)
    num_preemptions = sum(finish.num_preemptions for finish in scarce[1].values())
    assert num_preemptions > 0 or num_blocks == 60


def test_a_dead_end_fails_one_answer(grammars: Grammars) -> None:
    """D3: the last token may not be allowed by both; who asked for that is told, and nobody else loses anything."""
    texts = tuple(set(range(len(TOKENS))) - {END, OTHER_END})
    ends = asked(1, structured_outputs=StructuredOutputs(choice=("ab",)), allowed_token_ids=texts)
    requests = [request for request in mixed(12) if request.id != 1]
    alone = run(grammars, requests)
    tokens, finishes = run(grammars, [ends, *requests])
    assert finishes[1, 0].reason is FinishReason.ERROR
    assert "masked" in (finishes[1, 0].error or "")
    assert text_of(tokens[1, 0]) == b"ab"
    assert {key: said for key, said in tokens.items() if key[0] != 1} == alone[0]


def test_an_answer_that_does_not_fit_ends_by_its_length(grammars: Grammars) -> None:
    request = asked(0, structured_outputs=StructuredOutputs(regex="[ab]{40}"), max_tokens=5)
    tokens, finishes = run(grammars, [request])
    assert finishes[0, 0].reason is FinishReason.LENGTH
    assert re.fullmatch("[ab]{5,10}", text_of(tokens[0, 0]).decode())


def test_a_minimum_length_and_what_ignores_the_end(grammars: Grammars) -> None:
    longer = asked(0, structured_outputs=StructuredOutputs(regex="a*"), min_tokens=20)
    tokens, finishes = run(grammars, [longer])
    assert finishes[0, 0].reason is FinishReason.STOP
    assert len(tokens[0, 0]) > 20
    padded = asked(1, structured_outputs=StructuredOutputs(choice=("ab",)), ignore_eos=True, max_tokens=12)
    tokens, finishes = run(grammars, [padded])
    assert finishes[1, 0].reason is FinishReason.LENGTH
    assert text_of(tokens[1, 0]) == b"ab"
    assert len(tokens[1, 0]) == 12
