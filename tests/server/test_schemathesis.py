"""Thousands of requests made from the server's own OpenAPI document, right and wrong ones, by schemathesis.

It is not among the test requirements: `pip install schemathesis`, and `pytest -m long` with this file. What it finds is
a fault of the server, or an untruth of its document: a 5xx, a status or a form of response that is not told, something
that is told to be right and is refused, or wrong and is served, a hang.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.served import served

pytestmark = pytest.mark.long

CONFIG = """
headers = { Authorization = "Bearer client" }

[checks]
# A deadline that is missed is a 504, as was asked for.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]
# Fields may exclude each other (`best_of` and `stream`), which no schema tells; and limits are changed meanwhile.
positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "429", "504"]

[[operations]]
include-tag = "Owner"
headers = { Authorization = "Bearer owner" }
"""


@pytest.mark.parametrize("seed", range(3))
def test_schemathesis_finds_nothing(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert program is not None
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    worker = {"max_model_len": 256, "max_num_seqs": 32}
    batches = str(tmp_path / "batches")
    with (tmp_path / "log").open("w") as log, served(
        worker, stderr=log, api_keys=["client"], admin_api_keys=["owner"], enable_per_request_metrics=True, ui=True,
        batch_dir=batches,
    ) as server:  # fmt: skip
        done = subprocess.run(
            [
                *(program, "--config-file", str(config), "run", f"http://127.0.0.1:{server.port}/openapi.json"),
                *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "100", "--seed", str(seed)),
                *("--workers", "2", "--request-timeout", "20", "--max-response-time", "15", "--continue-on-failure"),
                *("--suppress-health-check", "all", "--no-color"),
            ],
            capture_output=True,
            text=True,
        )
        assert server.get("/health")[0] == 200
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Traceback" not in (tmp_path / "log").read_text()
