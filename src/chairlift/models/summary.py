"""What a model on disk is, said without loading it, also where it cannot be computed here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.errors import InvalidModel
from chairlift.models.encoder import Encoder, holds_encoder, open_encoder
from chairlift.models.files import exists, read_config, shown
from chairlift.models.gguf import MAX_PARTS, open_gguf_part, part_name
from chairlift.models.model import Model, open_model
from chairlift.models.prepared import METADATA
from chairlift.models.resolve import ModelFiles


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What is on disk: `file_bytes` of weights in `encodings`, bytes by the name of each, most first.

    `opened` is what could be made of it, `problem` why it could not. `architecture` is as the files have it.
    """

    files: ModelFiles
    architecture: str
    file_bytes: int
    opened: Model | Encoder | None = None
    problem: str | None = None

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights, a head that is the embedding not counted twice; 0 if it could not be opened."""
        return 0 if self.opened is None else sum(rows * cols for rows, cols in _shapes(self.opened))

    @property
    def encodings(self) -> dict[str, int]:
        """Bytes in the file by how they are encoded, most first."""
        if self.opened is None:
            return {}
        weights, found = self.opened.weights, Counter[str]()
        for name in weights.names:
            tensor = weights.tensor(name)
            found[tensor.encoding.label] += tensor.num_bytes
        return dict(found.most_common())

    @property
    def precision(self) -> str:
        """How most of it is stored: one name, or two where a quarter is another's."""
        found = self.encodings
        total = sum(found.values())
        return "+".join(name for name, size in list(found.items())[:2] if 4 * size >= total) or "?"


def _shapes(opened: Model | Encoder) -> list[tuple[int, int]]:
    is_copy = isinstance(opened, Model) and opened.config.tie_embeddings  # of the embeddings, in other groups
    names = (name for name in opened.weights.names if not (is_copy and name == "head"))
    return [opened.weights.tensor(name).shape for name in names]


def summarize(files: ModelFiles) -> ModelSummary:
    """Look at the headers of a model's files. Nothing is refused: what is wrong is in `problem`."""
    file_bytes = sum(path.stat().st_size for path in weight_paths(files))
    opened: Model | Encoder | None = None
    problem = None
    try:
        opened = open_encoder(files) if holds_encoder(files) else open_model(files)
    except InvalidModel as error:
        problem = str(error)
    return ModelSummary(files, _architecture(files, opened), file_bytes, opened, problem)


def weight_paths(files: ModelFiles) -> list[Path]:
    """The files that hold weights, as far as they are there."""
    if files.kind == "folder":
        return sorted(path for path in files.path.glob("*.safetensors") if path.is_file())
    paths = [files.path]
    for number in range(2, MAX_PARTS + 1):
        path = files.path.with_name(part_name(files.path, number))
        if path == paths[0] or not path.is_file():
            break
        paths.append(path)
    return paths


def _architecture(files: ModelFiles, opened: Model | Encoder | None) -> str:
    """As the files declare it; ? if they do not. A header of a hundred thousand tokens is not read once more."""
    if isinstance(opened, Model) and opened.gguf is not None:
        return shown(opened.gguf.text("general.architecture"))
    try:
        path = files.path / METADATA if files.kind == "folder" else files.path
        if files.kind == "gguf" or exists(path):
            return shown(open_gguf_part(path).text("general.architecture"))
        declared = read_config(files.path / "config.json").get("architectures")
    except InvalidModel:
        return "?"
    return shown(declared[0]) if isinstance(declared, list) and declared else "?"
