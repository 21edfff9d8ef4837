#!/usr/bin/env python3
"""Write a small random Llama, for benchmarks that need thousands of requests rather than sense.

    .venv/bin/python benchmarks/small_model.py small.gguf
    .venv/bin/chairlift bench fidelity small.gguf --parts short capacity

13 million parameters: a step takes a few milliseconds on two cores, so that the scheduler's share can still be seen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from models.writers import tiny_llama


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path, metavar="FILE.gguf")
    model = tiny_llama(
        hidden_size=320,
        num_layers=8,
        num_heads=5,
        num_kv_heads=5,
        head_size=64,
        intermediate_size=896,
        vocab_size=4096,
        max_model_len=2048,
    )
    model.write_gguf(parser.parse_args().path, "Q8_0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
