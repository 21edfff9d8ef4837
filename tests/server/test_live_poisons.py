"""The poison catalogue among live streams, on the real scheduler and a device without arithmetic (reliability F1, S16).

`test_poison.py` does the same with a real model. Here each answer is a function of what its cache holds, so that a
token of somebody else's would change it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import VOCAB_SIZE
from server.poisons import poisons
from server.served import served
from server.test_poison import LEAKED, PROMPTS, TIMEOUT_S, Bystander, post

CONTEXT = 512
NUM_STREAMS = 16


def check(tmp_path: Path, step: int, num_tokens: int) -> None:
    catalogue = list(poisons(VOCAB_SIZE, CONTEXT))[::step]
    log = tmp_path / "log"
    engine = {"step_s": 0.001, "max_model_len": CONTEXT, "max_num_seqs": 32}
    with log.open("w") as stderr, served(engine, script="serve_engine.py", stderr=stderr) as server:
        prompts = [f"{PROMPTS[i % len(PROMPTS)]} {i}" for i in range(NUM_STREAMS)]
        streams = [Bystander(server.port, prompt, num_tokens) for prompt in prompts]
        undisturbed = [stream.ask() for stream in streams]
        workers = server.worker_pids()
        for stream in streams:
            stream.start()
        wrong = []
        for poison in catalogue:
            status, content = post(server.port, poison.path, poison.body)
            if not (status == 200 or 400 <= status < 500) or LEAKED.search(content[:100_000]):
                wrong.append((poison.name, status, content[:200]))
        for stream in streams:
            stream.stop.set()
        for stream in streams:
            stream.join(TIMEOUT_S)
        assert not wrong
        for stream, text in zip(streams, undisturbed, strict=True):
            assert set(stream.answers) == {text}
        assert server.worker_pids() == workers
        server.process.terminate()
        assert server.status() == 0
    text = log.read_text()
    assert "Traceback" not in text
    assert "VIOLATIONS" not in text
    num_answers = sum(len(stream.answers) for stream in streams)
    print(json.dumps({"poisons": len(catalogue), "streams": NUM_STREAMS, "answers": num_answers, "changed": 0}))


def test_s16_eighty_poisons_among_sixteen_streams(tmp_path: Path) -> None:
    num_poisons = len(list(poisons(VOCAB_SIZE, CONTEXT)))
    assert num_poisons // (num_poisons // 85) >= 80
    check(tmp_path, num_poisons // 85, 40)


@pytest.mark.long
def test_s16_every_poison_among_sixteen_streams(tmp_path: Path) -> None:
    check(tmp_path, 1, 200)
