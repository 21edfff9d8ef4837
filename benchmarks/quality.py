"""What each precision costs in quality: perplexity on English text, and how far its distributions are from float32's.

    python benchmarks/quality.py [--dtype int8 bfloat16] [--windows 40]

The text is the documentation strings of Python's standard library, cut into windows of 512 tokens that are computed
whole, each without a past. Per precision, one JSON line, as of `chairlift eval perplexity --against float32`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from pathlib import Path

from chairlift.executors.openvino.choice import choose_weights
from chairlift.executors.openvino.evaluation import evaluate, windows_of
from chairlift.executors.openvino.options import ExecutorOptions
from chairlift.executors.openvino.program import Program
from chairlift.models import open_model, resolve
from chairlift.text import load_text

WINDOW = 512


def english(min_chars: int) -> str:
    """Documentation strings of the standard library, in the order of file names, at least `min_chars` of them."""
    pieces: list[str] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                # Long enough to be prose; the rest is signatures and one-liners.
                if len(text) > 400:
                    pieces.append(text)
                    total += len(text)
        if total > min_chars:
            break
    return "\n\n".join(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description="quality of each precision against float32")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8", "int4", "auto"])
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--windows", type=int, default=40)
    args = parser.parse_args()

    files = resolve(args.model)
    model = open_model(files)
    tokenizer = load_text(files).tokenizer
    prefix = [token for token in tokenizer.encode("")[:1] if token == tokenizer.bos_token_id]
    room = WINDOW - len(prefix)
    tokens = tokenizer.encode(english(args.windows * WINDOW * 6), add_special_tokens=False)[: args.windows * room]
    windows = windows_of(tokens, prefix, WINDOW, room)

    def program(dtype: str, kv_cache_dtype: str) -> Program:
        weights = choose_weights(model, dtype)  # type: ignore[arg-type]
        options = ExecutorOptions(
            max_num_seqs=1,
            max_model_len=WINDOW,
            dtype=weights.dtype,
            wide_weights=weights.wide,
            head_group=weights.head_group,
            kv_cache_dtype=kv_cache_dtype,  # type: ignore[arg-type]
        )
        return Program(model, options)

    exact = program("float32", "auto")
    for dtype in args.dtype:
        seen = evaluate(program(dtype, args.kv_cache_dtype), exact, windows)
        print(json.dumps({"precision": dtype} | seen.report()), flush=True)


if __name__ == "__main__":
    main()
