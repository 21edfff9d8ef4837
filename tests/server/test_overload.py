"""The overload benchmark in miniature: a real server, a worker without a model, ten times what it can serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "overload.py"


def test_s12_ten_times_the_capacity_costs_the_excess_and_nothing_else() -> None:
    """The bars are wider than those of the benchmark: this machine may be busy with other tests."""
    sizes = ["--seconds", "3", "--after", "2", "--slots", "4", "--tokens", "20", "--queue-s", "0.5"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--fake", *sizes], capture_output=True, text=True, timeout=120
    )
    report = json.loads(done.stdout)
    assert report["exit_status"] == 0, done.stderr
    assert set(report["outcomes"]) == {"200", "429 max_num_queued_reqs"}
    assert report["outcomes"]["429 max_num_queued_reqs"] > 5 * report["outcomes"]["200"]
    assert 10 < report["queue_max"] <= report["queue_cap"]
    assert report["refusals_without_retry_after"] == 0
    assert report["refusal_p50_ms"] < 50
    assert report["goodput_share"] > 0.75
    assert report["latency_back_s"] < 1.9
