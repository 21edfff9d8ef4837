"""Expected logits of every family from Hugging Face transformers, stored in `family_fixtures.npz`.

Run once, anywhere but in Chairlift's venv:

    python -m venv tmp/hf && tmp/hf/bin/pip install torch==2.13.0 transformers==5.24.0 numpy
    PYTHONPATH=tests tmp/hf/bin/python tests/executors/make_family_fixtures.py [NAME...]

With names, only those are computed, and the others stay as they are. The checkpoints themselves are drawn again from
their seeds by the tests.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

from executors.families import CONFIGS, FIXTURES, POSITIONS, tokens_of, write_checkpoint


def main() -> None:
    names, expected = sys.argv[1:] or list(CONFIGS), {}
    if len(sys.argv) > 1:
        with np.load(FIXTURES) as stored:
            expected = {name: stored[name] for name in stored if name in CONFIGS}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = write_checkpoint(name, Path(folder) / name)
            model, info = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
            assert not info["unexpected_keys"] and not info["mismatched_keys"], info
            assert set(info["missing_keys"]) <= {"lm_head.weight"}, info
            model.eval()
            with torch.no_grad():
                output = model(torch.tensor([tokens_of(name)]), output_attentions=True)
        logits = output.logits[0].numpy()
        last = [layer[0, :, -1].numpy() for layer in output.attentions]  # [heads, context]
        entropy = float(np.mean([-(p * np.log(p + 1e-20)).sum(axis=-1).mean() for p in last]))
        assert logits.std() >= 3, f"{name}: logits with a standard deviation of {logits.std()}"
        best = torch.softmax(output.logits[0], dim=-1).max(dim=-1).values.mean()
        assert best < 0.8, f"{name}: nothing is undecided, so no rounding would be seen"
        assert entropy < 0.9 * np.log(min(len(logits), CONFIGS[name].get("sliding_window") or len(logits))), name
        print(f"{name}: logits sd {logits.std():.2f}, attention entropy {entropy:.2f} nats")
        expected[name] = logits[list(POSITIONS)].astype(np.float32)
    np.savez_compressed(FIXTURES, **expected)
    print(f"{FIXTURES}: {FIXTURES.stat().st_size} bytes")


if __name__ == "__main__":
    main()
