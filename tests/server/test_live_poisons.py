"""The poison catalogue among live streams, on the real scheduler and a device without arithmetic (reliability F1, S16).

`test_poison.py` does the same with a real model. Here each answer is a function of what its cache holds, so that a
token of somebody else's would change it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import VOCAB_SIZE
from server.poisons import poisons
from server.served import served
from server.test_poison import num_answers_among

CONTEXT = 512
NUM_STREAMS = 16
ENDS_ELSEWHERE = "allowed end, later"
"""Served here: the token that ends answers of the real model is a byte like others."""


def check(tmp_path: Path, step: int, num_tokens: int) -> None:
    catalogue = [
        replace(poison, status=None) if poison.name == ENDS_ELSEWHERE else poison
        for poison in list(poisons(VOCAB_SIZE, CONTEXT))[::step]
    ]
    log = tmp_path / "log"
    engine = {"step_s": 0.001, "max_model_len": CONTEXT, "max_num_seqs": 32}
    with log.open("w") as stderr, served(engine, script="serve_engine.py", stderr=stderr) as server:
        workers = server.worker_pids()
        num_answers = num_answers_among(server.port, catalogue, NUM_STREAMS, num_tokens)
        assert server.worker_pids() == workers
        server.process.terminate()
        assert server.status() == 0
    text = log.read_text()
    assert "Traceback" not in text
    assert "VIOLATIONS" not in text
    print(json.dumps({"poisons": len(catalogue), "streams": NUM_STREAMS, "answers": num_answers, "changed": 0}))


def test_s16_eighty_poisons_among_sixteen_streams(tmp_path: Path) -> None:
    num_poisons = len(list(poisons(VOCAB_SIZE, CONTEXT)))
    assert num_poisons // (num_poisons // 85) >= 80
    check(tmp_path, num_poisons // 85, 40)


@pytest.mark.long
def test_s16_every_poison_among_sixteen_streams(tmp_path: Path) -> None:
    check(tmp_path, 1, 200)
