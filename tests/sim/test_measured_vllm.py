"""vLLM as LLMServingSim measured it, against the simulator with the profile of its kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.sim.cost import HostCosts
from measured_runs import shared_traces
from measured_vllm import fitted, off, vllm_result, vllm_runs

TRACES = shared_traces()
pytestmark = pytest.mark.skipif(TRACES is None, reason="../shared/traces is not there")


@pytest.fixture(scope="module")
def traces() -> Path:
    if TRACES is None:
        pytest.skip("../shared/traces is not there")
    return TRACES


def test_every_statistic_is_within_a_twentieth(traces: Path) -> None:
    """After one scalar is fitted: what the host adds to each step. Kernels alone are too fast, and say so alike."""
    runs = vllm_runs(traces)
    assert runs
    for run in runs:
        for name, (measured, simulated) in off(run, vllm_result(run, fitted(run).cost)).items():
            assert simulated == pytest.approx(measured, rel=0.05), (run.name, name)


def test_what_the_host_adds_is_milliseconds(traces: Path) -> None:
    """Of a run without a limit to its cache, whose kernels alone would have it done 4 to 8 % earlier."""
    run = next(run for run in vllm_runs(traces) if run.name == "RTXPRO6000__Llama-3.1-8B")
    pairs = off(run, vllm_result(run, run.kernels))
    for name in ("tpot mean", "e2el mean", "makespan"):
        measured, simulated = pairs[name]
        assert 0.90 < simulated / measured < 0.98
    with_host = off(run, vllm_result(run, run.kernels.with_host(HostCosts(0.0016))))
    assert all(abs(simulated / measured - 1.0) < 0.08 for measured, simulated in with_host.values())
