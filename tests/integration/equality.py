"""How much the way of computing changes what comes out: texts, logits, distributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pydoc_data.topics import topics
from typing import Self

import numpy as np

from chairlift.core.types import Request, SamplingParams
from chairlift.executors.forward import ReferenceModel, empty_caches, weights_of
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.executors.openvino.options import Dtype
from chairlift.models import Model
from chairlift.text import Text
from executors.driving import divergence
from integration.variants import Floats, Key, Outcome, Probe, Variant, Watch, generate

NUM_TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
TIE = 1e-3
"""Two best logits as near as this may change places."""


class Subject:
    """A model on the OpenVINO executor, with a probe where it samples, and the same model in NumPy."""

    def __init__(self, model: Model, executor: OpenVINOExecutor, probe: Probe) -> None:
        self.executor = executor
        self._probe = probe
        self.vocab_size = model.config.vocab_size
        self._model = model
        self._exact: ReferenceModel | None = None
        self.outcomes: dict[str, Outcome] = {}
        """Of the last run of each way, by its name."""

    @classmethod
    def load(
        cls, model: Model, dtype: Dtype, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int = 256
    ) -> Self:
        probe = Probe(max_num_seqs, model.config.vocab_size)
        options = ExecutorOptions(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            dtype=dtype,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        return cls(model, OpenVINOExecutor.load(model, options, lambda *_: probe), probe)

    def generate(
        self,
        requests: Sequence[Request],
        variant: Variant,
        watch: Watch | None = None,
        script: Mapping[Key, Sequence[int]] | None = None,
    ) -> Outcome:
        self._probe.watch, self._probe.script = watch, script or {}
        outcome = generate(self.executor, self.executor.cache_shape, self.vocab_size, requests, variant)
        self.outcomes[variant.name] = outcome
        return outcome

    def exact(self, tokens: Sequence[int]) -> Floats:
        """The reference's logits after each token, `[tokens, vocab]`."""
        if self._exact is None:
            self._exact = ReferenceModel(self._model.config, weights_of(self._model))
        return self._exact.forward(list(tokens), 0, *empty_caches(self._model.config, len(tokens)))


def english_requests(text: Text, num: int, params: SamplingParams, *, longest: int) -> list[Request]:
    """Beginnings of Python's documentation, two of each topic; a third of them comes later, one with each step."""
    rng = np.random.default_rng(0)
    requests = []
    for i in range(num):
        tokens = text.tokenizer.encode(topics[sorted(topics)[i // 2]])
        length = int(rng.integers(longest // 3, longest))
        requests.append(Request(i, tokens[:length], params, arrival=float(max(0, i - num * 2 // 3))))
    return requests


# ---------------------------------------------------------------- texts


@dataclass(slots=True)
class Texts:
    """Sequences compared, and for each that differs the gap between the two best logits where it parts."""

    num_cases: int = 0
    gaps: list[float] = field(default_factory=list)

    @property
    def percent_equal(self) -> float:
        return 100 * (1 - len(self.gaps) / self.num_cases)

    @property
    def max_gap(self) -> float:
        return max(self.gaps, default=0.0)


def compare_texts(subject: Subject, requests: Sequence[Request], ways: Sequence[Variant]) -> dict[str, Texts]:
    """Greedy tokens of every way against those of the first."""
    gaps: dict[tuple[Key, int], float] = {}

    def watch(key: Key, num_known: int, logits: Floats) -> None:
        second, best = np.partition(logits, -2)[-2:]
        gaps[key, num_known] = float(best - second)

    first = subject.generate(requests, ways[0], watch)
    num_prompt = {request.id: len(request.prompt) for request in requests}
    found = {}
    for way in ways[1:]:
        found[way.name] = texts = Texts()
        tokens = subject.generate(requests, way).tokens
        for key, wanted in first.tokens.items():
            texts.num_cases += 1
            at = parting(tokens[key], wanted)
            if at is not None:
                texts.gaps.append(gaps[key, num_prompt[key[0]] + at])
    return found


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two lists of tokens differ first; None if they are equal."""
    if list(one) == list(other):
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# ---------------------------------------------------------------- logits


class Logits:
    """A watch that keeps everything: logits by (sequence, number of tokens known)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Key, int], Floats] = {}

    def __call__(self, key: Key, num_known: int, logits: Floats) -> None:
        self.rows[key, num_known] = logits.copy()


def logit_errors(subject: Subject, requests: Sequence[Request], ways: Iterable[Variant]) -> dict[str, float]:
    """Largest distance of any sampled token's logits from the reference's, for each way."""
    prompts = {request.id: list(request.prompt) for request in requests}
    exact: dict[tuple[int, ...], Floats] = {}
    worst = {}
    for way in ways:
        logits = Logits()
        outcome = subject.generate(requests, way, logits)
        error = 0.0
        for key, tokens in outcome.tokens.items():
            known = (*prompts[key[0]], *tokens[:-1])
            if known not in exact:
                exact[known] = subject.exact(known)
            for i in range(len(tokens)):
                num_known = len(prompts[key[0]]) + i
                error = max(error, float(np.abs(logits.rows[key, num_known] - exact[known][num_known - 1]).max()))
        worst[way.name] = error
    return worst


@dataclass(frozen=True, slots=True)
class Divergence:
    """Kullback-Leibler divergence over all sampled tokens, in nats."""

    mean: float
    worst: float
    num_tokens: int


def divergences(subject: Subject, requests: Sequence[Request], ways: Sequence[Variant]) -> dict[str, Divergence]:
    """Of every way from the first, at the same tokens: those that the first one chose are given to all."""
    exact = Logits()
    first = subject.generate(requests, ways[0], exact)
    script = {(r.id, 0): [*r.prompt, *first.tokens[r.id, 0]] for r in requests}
    found = {}
    for way in ways[1:]:
        own = Logits()
        subject.generate(requests, way, own, script)
        nats = [float(divergence(own.rows[at][None], row[None])[0]) for at, row in exact.rows.items()]
        found[way.name] = Divergence(float(np.mean(nats)), max(nats), len(nats))
    return found


# ---------------------------------------------------------------- neighbours


def equal_bits(subject: Subject, prompt: Sequence[int], num_neighbours: int, seed: int = 0) -> tuple[int, int]:
    """Rows of a sequence's logits that are the same bit for bit in three crowds, and rows compared.

    The second crowd has other tokens than the first, the third other lengths too. The sequence comes when all of them
    decode, so that its steps have the same sizes in each.
    """
    rng = np.random.default_rng(seed)
    budget = subject.executor.max_num_batched_tokens
    longest = 3 * subject.executor.cache_shape.block_size
    arrival = 3 + num_neighbours * longest // budget
    patient = replace(GREEDY, max_tokens=arrival + len(prompt) // budget + NUM_TOKENS + 4)
    lengths = rng.integers(1, longest, num_neighbours)
    crowds = []
    for other_lengths in (lengths, lengths, rng.integers(1, longest, num_neighbours)):
        neighbours = [
            Request(i, rng.integers(3, subject.vocab_size, length).tolist(), patient)
            for i, length in enumerate(other_lengths, 1)
        ]
        logits = Logits()
        way = Variant("crowd", num_neighbours + 1, budget)
        subject.generate([*neighbours, Request(0, prompt, GREEDY, arrival=float(arrival))], way, logits)
        crowds.append([row for (key, _), row in logits.rows.items() if key == (0, 0)])
    rows = list(zip(*crowds, strict=True))
    return sum(all(np.array_equal(first, row) for row in others) for first, *others in rows), len(rows)
