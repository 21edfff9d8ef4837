"""Models that are named as on a hub, on this machine before anything is started with them."""

from __future__ import annotations

from dataclasses import replace

from chairlift.models import Model, open_model, resolve
from chairlift.models.fetch import fetched
from chairlift.worker.loading import getting
from chairlift.worker.options import EngineOptions


def with_models_here(options: EngineOptions, revision: str | None = None) -> EngineOptions:
    """The same with the names of what lies on this machine: models of a hub are got, and named by their commit.

    `revision` is that of the model, not of the one beside it.

    Raises:
        InvalidOption: a revision of what has none.
        InvalidModel: one cannot be got.
    """
    beside = options.embedding_model
    return replace(
        options,
        model=fetched(options.model, revision, getting),
        embedding_model=None if beside is None else fetched(beside, None, getting),
    )


def model_here(name: str) -> Model:
    """The model of that name, open; got first if it is one of a hub.

    Raises:
        InvalidModel: it cannot be got, or not be opened.
    """
    return open_model(resolve(fetched(name, None, getting)))
