"""The composition root: the one place where core, models, executors, sampling and text are put together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chairlift.core.engine import Engine, Observer, Recorder
from chairlift.core.errors import InvalidOption
from chairlift.core.policy import Policy
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits, Request
from chairlift.executors.loading import Report
from chairlift.executors.openvino import ExecutorOptions, OpenVINOExecutor
from chairlift.executors.openvino.choice import choose_weights
from chairlift.grammars.checker import Checker
from chairlift.grammars.compiling import Vocabulary
from chairlift.grammars.store import Grammars
from chairlift.journal.writer import Journal, open_journal
from chairlift.models import Model, open_model, resolve
from chairlift.sampling import Constraint, ConstraintFactory, Sampler
from chairlift.text import GivenTemplate, StopAutomaton, StopMatcher, Text, TextStream, Tokenizer, load_text
from chairlift.text.stream import BytesByToken
from chairlift.worker.loading import LoadingBar
from chairlift.worker.options import EngineOptions
from chairlift.worker.reporting import Reporting


@dataclass(frozen=True, slots=True)
class Built:
    """An engine that is ready to compute, and what its owner must know of it."""

    engine: Engine
    model: Model
    text: Text
    limits: Limits
    cache_shape: CacheShape
    journal: Journal | None = None
    """What the engine is recorded by; whoever drives the engine closes it afterwards."""
    grammars: Grammars | None = None
    """What requests with a form are asked at, before the engine."""

    def close(self) -> None:
        """The engine was driven for the last time."""
        if self.grammars is not None:
            self.grammars.close()
        if self.journal is not None:
            self.journal.close()

    def text_stream(self, request: Request, tokens: BytesByToken | None = None) -> TextStream:
        """The text of one answer to `request`, from its first token on; `tokens` is what each stands for.

        After a special token, as at the end of most chat prompts, begins a text of its own.
        """
        params = request.params
        tokenizer = self.text.tokenizer
        starts_anew = not request.prompt or request.prompt[-1] in tokenizer.special_token_ids
        return TextStream(
            tokens or tokenizer,
            params.stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
            strips_space=starts_anew and tokenizer.strips_space,
        )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on a device, ready to compute. Engines are put around it one after the other, never two at a time."""

    executor: OpenVINOExecutor
    model: Model
    text: Text
    limits: Limits
    enable_prefix_caching: bool
    grammars: Grammars

    def engine(self, policy: Policy, observer: Observer | None = None, recorder: Recorder | None = None) -> Engine:
        """A fresh engine, with nothing in its cache."""
        scheduler = Scheduler(
            self.limits,
            self.executor.cache_shape,
            vocab_size=self.model.config.vocab_size,
            enable_prefix_caching=self.enable_prefix_caching,
            policy=policy,
        )
        return Engine(scheduler, Reporting(self.executor), _StopMatchers(self.text.tokenizer), observer, recorder)


def build(
    options: EngineOptions, show: Callable[[str], Report] = LoadingBar, chat_template: GivenTemplate | None = None
) -> Built:
    """Load a model and put an engine around it. `show` is given its name and shows how far it is loaded.

    `chat_template` takes the place of its own.

    Raises:
        InvalidModel: there is no such model, or its files cannot be used.
        InvalidOption: options that do not go with this model or machine.
    """
    journal = None if options.journal is None else open_journal(Path(options.journal), options.journal_options())
    loaded = load(options, show, chat_template)
    engine = loaded.engine(options.policy(), recorder=journal)
    if journal is not None:
        journal.start(engine.scheduler)
    shape = loaded.executor.cache_shape
    return Built(engine, loaded.model, loaded.text, loaded.limits, shape, journal, loaded.grammars)


def load(
    options: EngineOptions, show: Callable[[str], Report] = LoadingBar, chat_template: GivenTemplate | None = None
) -> LoadedModel:
    """Load a model. The tokenizer is read, and made ready for grammars, while the device compiles.

    Raises:
        InvalidModel: there is no such model, or its files cannot be used.
        InvalidOption: options that do not go with this model or machine.
    """
    model = open_model(resolve(options.model))
    max_model_len = options.context_len(model.name, model.config.max_model_len)
    most = options.max_num_seqs * max_model_len
    if options.max_num_batched_tokens is not None and options.max_num_batched_tokens > most:
        raise InvalidOption(
            f"max_num_batched_tokens is {options.max_num_batched_tokens}, but a step has at most {most} tokens: "
            f"{options.max_num_seqs} sequences of {max_model_len}"
        )
    weights = choose_weights(model, options.dtype)
    if weights.reason:
        print(f"chairlift worker: weights of {model.name} in {weights.reason}", file=sys.stderr, flush=True)
    executor_options = ExecutorOptions(
        max_num_seqs=options.max_num_seqs,
        max_model_len=max_model_len,
        dtype=weights.dtype,
        wide_weights=weights.wide,
        head_group=weights.head_group,
        input_group=weights.input_group,
        kv_cache_dtype=options.kv_cache_dtype,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_threads=options.num_threads,
        whole_context=options.max_model_len is not None,
    )
    with ThreadPoolExecutor(1, "text") as pool:
        reading = pool.submit(_read_text, model, chat_template)
        constraints = _Constraints(reading)
        sampler_factory = _sampler_factory(options.seed, constraints)
        executor = OpenVINOExecutor.load(model, executor_options, sampler_factory, show(model.name))
        text, grammars = reading.result()

    shape = executor.cache_shape
    max_model_len = _held_len(options, model.name, max_model_len, shape.num_blocks * shape.block_size)
    limits = Limits(options.max_num_seqs, executor.max_num_batched_tokens, max_model_len)
    return LoadedModel(executor, model, text, limits, options.enable_prefix_caching, grammars)


def _held_len(options: EngineOptions, name: str, max_model_len: int, num_cache_tokens: int) -> int:
    """Tokens of the longest sequence that the cache holds; who asked for a length gets no less.

    Raises:
        InvalidOption: what was asked for is longer.
    """
    if max_model_len <= num_cache_tokens:
        return max_model_len
    if options.max_model_len is not None:
        raise InvalidOption(
            f"max_model_len is {max_model_len}, but the cache holds {num_cache_tokens} tokens: "
            "give it more memory (kv_cache_memory_bytes)"
        )
    said = f"the context of {name} is cut from {max_model_len} tokens to the {num_cache_tokens} that its cache holds"
    print(f"chairlift worker: {said}: kv_cache_memory_bytes gives it more", file=sys.stderr, flush=True)
    return num_cache_tokens


def _read_text(model: Model, chat_template: GivenTemplate | None) -> tuple[Text, Grammars]:
    text = load_text(model, chat_template)
    tokenizer = text.tokenizer
    num_tokens = min(tokenizer.vocab_size, model.config.vocab_size)
    vocabulary = Vocabulary(
        [tokenizer.token_bytes(token) for token in range(num_tokens)],
        sorted(token for token in tokenizer.special_token_ids if token < num_tokens),
        [token for token in text.eos_token_ids if token < num_tokens],
    )
    return text, Grammars(vocabulary, tokenizer.encode_later, Checker)


class _Constraints:
    """Follows the grammars of a text that may still be read."""

    def __init__(self, reading: Future[tuple[Text, Grammars]]) -> None:
        self._reading = reading

    def __call__(self, request: Request, output: list[int]) -> Constraint:
        return self._reading.result()[1].matcher(request, output)


def _sampler_factory(seed: int | None, constraints: ConstraintFactory) -> Callable[[int, int], Sampler]:
    """A sampler whose randomness for requests without a seed is fresh, or repeats with the same engine seed."""
    entropy = None if seed is None else seed.to_bytes(32, "little")
    return partial(Sampler, entropy=entropy, constraints=constraints)


class _StopMatchers:
    """Makes the watchers of stop strings; the choices of a request share their automaton."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._last: tuple[Request | None, StopAutomaton] = (None, StopAutomaton(()))

    def __call__(self, request: Request) -> StopMatcher | None:
        if not request.params.stop:
            return None
        if self._last[0] is not request:
            self._last = (request, StopAutomaton(request.params.stop))
        return StopMatcher(self._tokenizer, self._last[1])
