"""Compare our GGUF files of every family with what the `gguf` package makes of the same checkpoints.

Run by hand, anywhere but in Chairlift's venv; nothing is stored:

    python -m venv tmp/gguf && tmp/gguf/bin/pip install gguf numpy
    PYTHONPATH=tests tmp/gguf/bin/python tests/executors/check_gguf_families.py [FOLDER]

Tensor names come from the package's own tables, files from its writer. With a FOLDER its files are kept there.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found]
import numpy as np

from executors.families import CONFIGS, usual, weights_of
from executors.gguf_families import ARCHITECTURES, NAMES, gguf_name, metadata_of, tensors_of, write_gguf_checkpoint


def check_names(name: str) -> None:
    """The package knows every tensor by the name that we give it."""
    config = usual(CONFIGS[name])
    kind = config["model_type"]
    arch = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == ARCHITECTURES[kind])
    table = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for hf_name in weights_of(name):
        if kind == "gpt_oss" and "mlp.experts" in hf_name:  # cut in two before they are named
            continue
        hf_name += ".weight" if hf_name.endswith("sinks") else ""
        if ".experts." in hf_name:  # merged before they are named
            ours = gguf_name(re.sub(r"experts\.\d+\.", "experts.", hf_name), kind)
            hf_name = re.sub(r"experts\.\d+\.", "experts.", hf_name)
        elif ".norms." in hf_name:  # stacked before they are named
            hf_name = hf_name.split(".norms.")[0] + ".weight"
            ours = gguf_name(hf_name.replace("norm.weight", "norm.norms.weight"), kind)
        else:
            ours = gguf_name(hf_name, kind)
        theirs = table.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert theirs == ours, (hf_name, theirs, ours)


def write_theirs(name: str, path: Path) -> None:
    metadata = metadata_of(name)
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        _add(writer, key, value)
    for key, numbers in tensors_of(name).items():
        writer.add_tensor(key, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    match value:
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case np.ndarray():
            writer.add_array(key, value.tolist())
        case _:
            writer.add_array(key, value)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    for name in NAMES:
        check_names(name)
        write_theirs(name, folder / f"{name}.gguf")
        theirs = gguf.GGUFReader(folder / f"{name}.gguf")
        ours = gguf.GGUFReader(write_gguf_checkpoint(name, folder / f"{name}.ours.gguf"))
        assert {t.name: t.data.tobytes() for t in theirs.tensors} == {t.name: t.data.tobytes() for t in ours.tensors}
        for key, field in ours.fields.items():
            if not key.startswith("GGUF."):
                assert np.all(np.array(field.contents()) == np.array(theirs.fields[key].contents())), key
        (folder / f"{name}.ours.gguf").unlink()
        print(f"{name}: {len(ours.tensors)} tensors")


if __name__ == "__main__":
    main()
