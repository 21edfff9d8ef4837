"""The engine of single passes: an encoder, its tokenizer, and a scheduler that gathers batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chairlift.core.engine import Engine
from chairlift.core.errors import InvalidOption
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import CacheShape, Limits
from chairlift.executors.openvino.encoder import EncoderExecutor
from chairlift.executors.openvino.options import EncoderOptions
from chairlift.journal.writer import Journal, open_journal
from chairlift.models.encoder import Encoder, holds_encoder, open_encoder
from chairlift.models.resolve import ModelFiles, resolve
from chairlift.text.passages import PassageTokenizer, load_passages
from chairlift.wire import EncoderReady
from chairlift.worker.options import EngineOptions
from chairlift.worker.reporting import Reporting

ALONE_STEP_S = 0.5
"""What a full batch may take: large enough that everybody who waits usually fits into the next one."""
SHARED_STEP_S = 0.1
"""The same where answers are generated on the device: each of their tokens may have to wait for one batch."""


@dataclass(frozen=True, slots=True)
class BuiltEncoder:
    """An engine that reads texts, and what its owner must know of it."""

    engine: Engine
    encoder: Encoder
    passages: PassageTokenizer
    limits: Limits
    cache_shape: CacheShape
    journal: Journal | None = None

    def ready(self) -> EncoderReady:
        """What a server is told of it."""
        return EncoderReady(
            self.encoder.name,
            self.limits.max_model_len,
            self.limits.max_num_seqs,
            self.limits.max_num_batched_tokens,
            self.encoder.config.num_outputs,
            list(self.encoder.config.labels),
        )

    def close(self) -> None:
        """The engine was driven for the last time."""
        if self.journal is not None:
            self.journal.close()


def load_encoder(options: EngineOptions) -> tuple[BuiltEncoder | None, bool]:
    """The encoder that these options name, if they do, and whether a model generates (beside it).

    Raises:
        InvalidModel: a model that is not there, or whose files cannot be used.
        InvalidOption: options that do not go with it, two encoders, or a model beside another that is none.
    """
    files, generates = _encoder_files(options)
    return (None if files is None else _build(options, files, alone=not generates)), generates


def _encoder_files(options: EngineOptions) -> tuple[ModelFiles | None, bool]:
    """Where the encoder lies, and whether a model generates."""
    files = resolve(options.model)
    if options.embedding_model is None:
        return (files, False) if holds_encoder(files) else (None, True)
    if holds_encoder(files):
        raise InvalidOption(f"{files.name} is an encoder itself: embedding_model goes beside a model that generates")
    return resolve(options.embedding_model), True


def _build(options: EngineOptions, files: ModelFiles, *, alone: bool) -> BuiltEncoder:
    """Load an encoder and put an engine around it. Its journal has a name of its own beside another engine's."""
    encoder = open_encoder(files)
    passages = load_passages(files)
    max_model_len = encoder.config.max_model_len
    if alone:
        max_model_len = options.context_len(encoder.name, max_model_len)
    executor = EncoderExecutor(
        encoder,
        EncoderOptions(
            max_num_seqs=options.embedding_max_num_seqs,
            max_model_len=max_model_len,
            dtype=options.embedding_dtype,
            max_num_batched_tokens=options.embedding_max_num_batched_tokens,
            target_step_s=ALONE_STEP_S if alone else SHARED_STEP_S,
            num_threads=options.num_threads,
        ),
    )
    limits = Limits(options.embedding_max_num_seqs, executor.max_num_batched_tokens, max_model_len)
    scheduler = Scheduler(
        limits,
        executor.cache_shape,
        vocab_size=encoder.config.vocab_size,
        enable_prefix_caching=False,
        policy=options.encoder_policy(),
    )
    journal = None
    if options.journal is not None:
        journal = open_journal(Path(options.journal + ("" if alone else ".encoder")), options.journal_options())
    engine = Engine(scheduler, Reporting(executor), recorder=journal)
    if journal is not None:
        journal.start(scheduler)
    return BuiltEncoder(engine, encoder, passages, limits, executor.cache_shape, journal)
