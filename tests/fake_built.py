"""A fake device behind a real tokenizer, whose first tokens it speaks."""

from __future__ import annotations

from chairlift.core.engine import Engine
from chairlift.core.scheduler import Scheduler
from chairlift.core.types import Limits
from chairlift.models import DEFAULT_MODEL, open_model, resolve
from chairlift.text import load_text
from chairlift.worker.build import Built
from fakes import FakeExecutor

MODEL = open_model(resolve(DEFAULT_MODEL))
TEXT = load_text(MODEL)


def built(executor: FakeExecutor, max_model_len: int = 120) -> Built:
    limits = Limits(8, 64, max_model_len)
    scheduler = Scheduler(limits, executor.cache, vocab_size=MODEL.config.vocab_size)
    return Built(Engine(scheduler, executor), MODEL, TEXT, limits, executor.cache)
