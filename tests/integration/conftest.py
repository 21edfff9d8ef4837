from __future__ import annotations

import pytest

from chairlift.models import Model, open_model, resolve
from integration.equality import Subject
from models.writers import tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A random Llama of two layers with 128 tokens."""
    return open_model(resolve(str(tiny_llama().write_folder(tmp_path_factory.mktemp("tiny")))))


@pytest.fixture(scope="session")
def exact(tiny: Model) -> Subject:
    """It, in float32, for 64 sequences and steps of 256 tokens."""
    return Subject.load(tiny, "float32", max_num_seqs=64, max_num_batched_tokens=256)
