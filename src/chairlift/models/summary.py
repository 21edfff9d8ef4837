"""What a model on disk is, said without loading it, also where it cannot be computed here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.errors import InvalidModel
from chairlift.models.encoder import Encoder, holds_encoder, open_encoder
from chairlift.models.files import exists, read_config, shown
from chairlift.models.gguf import GGUF, MAX_PARTS, open_gguf_part, part_name
from chairlift.models.model import Model, open_model
from chairlift.models.prepared import METADATA
from chairlift.models.resolve import ModelFiles

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""Recipes by their number in `general.file_type` of GGUF, by which files are named: each is a mixture of encodings."""


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What is on disk: `file_bytes` of weights in `encodings`, bytes by the name of each, most first.

    `opened` is what could be made of it, `problem` why it could not. `architecture` is as the files have it, and so is
    `file_type`, the recipe by which a GGUF file was written.
    """

    files: ModelFiles
    architecture: str
    file_bytes: int
    opened: Model | Encoder | None = None
    problem: str | None = None
    file_type: str | None = None

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
        """How it was written; else how most of it is stored: one name, or two where a quarter is another's."""
        if self.file_type is not None:
            return self.file_type
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
    header = _header(files, opened)
    architecture = _architecture(files, header)
    return ModelSummary(files, architecture, file_bytes, opened, problem, _file_type(files, header))


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


def _header(files: ModelFiles, opened: Model | Encoder | None) -> GGUF | None:
    """That of a GGUF file, or of the one that a folder was made of; one of a hundred thousand tokens is read once."""
    if isinstance(opened, Model) and opened.gguf is not None:
        return opened.gguf
    path = files.path / METADATA if files.kind == "folder" else files.path
    try:
        return open_gguf_part(path) if files.kind == "gguf" or exists(path) else None
    except InvalidModel:
        return None


def _architecture(files: ModelFiles, header: GGUF | None) -> str:
    """As the files declare it; ? if they do not."""
    try:
        if header is not None:
            return shown(header.text("general.architecture"))
        if files.kind == "gguf":
            return "?"
        declared = read_config(files.path / "config.json").get("architectures")
    except InvalidModel:
        return "?"
    return shown(declared[0]) if isinstance(declared, list) and declared else "?"


def _file_type(files: ModelFiles, header: GGUF | None) -> str | None:
    """A folder that was made of a GGUF file has the header of that, and weights of its own."""
    if header is None or files.kind == "folder":
        return None
    try:
        return _FILE_TYPES.get(header.integer("general.file_type", -1))
    except InvalidModel:  # no integer
        return None
