"""`chairlift plan`: its flags, what it prints and what it writes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main, parse
from chairlift.cli.options import engine_options
from chairlift.core.policy import Policy
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.plan.flags import serve_flags

WORKLOAD = ["--num-prompts", "80", "--prompt", "60", "--output", "lognormal:8:0.5:30", "--seed", "3"]
ENGINE = ["--plain-cost", "10000:100:0.1:20"]
SMALL = [*WORKLOAD, *ENGINE, "--tolerance", "0.05", "--max-num-seqs", "4,8", "--max-num-batched-tokens", "128"]


def planned(tmp_path: Path, *flags: str) -> dict[str, Any]:
    path = tmp_path / "plan.json"
    assert main(["plan", *SMALL, *flags, "--output-json", str(path)]) == 0
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def test_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(tmp_path, "--p99-ttft-ms", "200", "--p99-itl-ms", "20", "--request-rate", "10")
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "objectives  p99 of TTFT 200 ms, ITL 20 ms" in captured.out
    assert f"chairlift serve {plan['chosen']['serve_flags']}" in captured.out
    assert "10 requests/s: STABLE, holds, margin +" in captured.out
    assert plan["chosen"]["ttft_ms"] <= 200.0 and plan["chosen"]["itl_ms"] <= 20.0
    assert plan["asked"]["holds"] and plan["asked"]["margin"] > 0.0
    band = plan["chosen"]["band"]
    assert band["slower_rate"] < plan["chosen"]["rate"] < band["faster_rate"]
    assert plan["frontier"][-1]["rate"] == plan["chosen"]["rate"]
    assert 0.0 < plan["goodput"]["penalised"] <= plan["goodput"]["raw"] <= 10.0


def test_the_same_flags_give_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for _ in range(2):
        plan = planned(tmp_path, "--p99-ttft-ms", "200", "--noise", "0.2")
        seen.append((plan, capsys.readouterr().out))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "asked", [[], ["--speed-up", "3"], ["--duration", "40", "--speed-up", "1.5"], ["--noise", "0.1"]]
)
def test_a_simulation_so_many_times_as_fast_is_what_the_plan_saw(asked: list[str], tmp_path: Path) -> None:
    chosen = planned(tmp_path, *asked, "--p99-ttft-ms", "200")["chosen"]
    path = tmp_path / "figures.json"
    flags = [*WORKLOAD, *ENGINE, *asked, *shlex.split(chosen["simulate_flags"])]
    assert main(["simulate", *flags, "--output-json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["p99_ttft_ms"] == pytest.approx(chosen["ttft_ms"])
    assert figures["p99_itl_ms"] == pytest.approx(chosen["itl_ms"])
    assert figures["p99_e2el_ms"] == pytest.approx(chosen["e2e_ms"])


def test_a_fleet_can_be_seen_again_too(tmp_path: Path) -> None:
    fleet = ["--replicas", "2", "--router", "round-robin", "--max-num-seqs", "8"]
    chosen = planned(tmp_path, *fleet, "--p99-ttft-ms", "200")["chosen"]
    path = tmp_path / "figures.json"
    flags = [*WORKLOAD, *ENGINE, *shlex.split(chosen["simulate_flags"]), "--output-json", str(path)]
    assert main(["simulate", *flags]) == 0
    assert json.loads(path.read_text())["p99_ttft_ms"] == pytest.approx(chosen["ttft_ms"])


def test_what_a_few_requests_do_not_tell_is_not_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two requests never pile up: the ladder ends before anything else does."""
    plan = planned(tmp_path, "--num-prompts", "2", "--max-num-seqs", "8")
    out = capsys.readouterr().out
    assert plan["chosen"]["limited_by"] == [] and "goodput" not in out
    assert "capacity    not found: 2 requests are too few" in out
    assert "engine      steps of 10000 us" in out


def test_orders_that_make_a_difference_are_tried(tmp_path: Path) -> None:
    tenants = ["--tenant", "a,request-rate=3", "--tenant", "b,priority=1"]
    plan = planned(tmp_path, "--p99-e2e-ms", "400", *tenants, "--max-num-seqs", "8")
    assert plan["num_settings"] == 3
    assert planned(tmp_path, "--p99-e2e-ms", "400", "--max-num-seqs", "8")["num_settings"] == 1


def test_pools_and_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ["--replicas", "1,2", "--split", "1:1", "--router", "round-robin", "--kv-token-bytes", "1000"]
    plan = planned(tmp_path, "--p99-ttft-ms", "300", "--max-num-seqs", "8", *fleet)
    assert plan["num_settings"] >= 3
    assert {row["num_engines"] for row in plan["frontier"]} == {1, 2}
    asked = planned(tmp_path, "--p99-ttft-ms", "300", "--max-num-seqs", "8", "--request-rate", "5", *fleet)
    assert asked["chosen"]["num_engines"] == 1
    assert "round-robin" in capsys.readouterr().out


def test_a_simulation_with_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    link = ["--kv-token-bytes", "1000", "--kv-link-gb-s", "0.001", "--kv-link-ms", "5"]
    assert main(["simulate", *WORKLOAD, *ENGINE, "--split", "1:2", *link, "--output-json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["completed"] == 80 and len(figures["replicas"]) == 3
    assert figures["prefix_hit_rate"] == 0.0
    assert figures["p99_itl_ms"] >= 65.0
    assert main(["simulate", *WORKLOAD, *ENGINE, "--split", "1:2", "--replicas", "2"]) == 2
    assert "--split 1:2 is not of 2 engines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--p99-ttft-ms", "0"], "--p99-ttft-ms must be above 0"),
        (["--p99-itl-ms", "nan"], "--p99-itl-ms must be above 0"),
        (["--p99-e2e-ms=-1"], "--p99-e2e-ms must be above 0"),
        (["--objective-percentile", "100"], "--objective-percentile"),
        (["--tolerance", "nan"], "--tolerance"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--users", "3"], "have no rate"),
        (["--request-rate", "-1"], "--request-rate must be above 0"),
        (["--step-time-band", "1"], "--step-time-band"),
        (["--max-num-seqs", "999"], "at least max_num_seqs"),
        (["--num-prompts", "1"], "one after the other"),
        (["--split", "1:1", "--kv-link-gb-s", "0"], "--kv-link-gb-s"),
    ],
)
def test_mistakes(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SMALL, *flags]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--split", "1"], ["--router", "none"], ["--scheduling-policy", "fcfs,worst"]])
def test_lists_of_what_there_is_not(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", *SMALL, *flags])
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(scheduling_policy="fair", weights={"a": 2.0, "b": 0.5}, priority_ageing_s=5.0, watermark=0.05),
        Policy(batching="dynamic", max_batch_wait_s=0.02, kv_reservation="max"),
        Policy(prefill_first=True, enable_chunked_prefill=False, max_bypass=3),
        Policy(itl_objective_s=0.03, ttft_objective_s=0.4, long_prefill_token_threshold=64),
    ],
)
def test_the_flags_of_a_server_say_what_was_planned(policy: Policy) -> None:
    setup = EngineSetup(
        cost=PlainCost(0.01), max_num_seqs=48, max_num_batched_tokens=700, policy=policy, enable_prefix_caching=False
    )
    words = shlex.split(" ".join(serve_flags(setup)))
    options = engine_options(parse(["serve", *words], {}))
    assert (options.max_num_seqs, options.max_num_batched_tokens) == (48, 700)
    assert not options.enable_prefix_caching
    assert replace(options.policy(), max_step_s=0.0) == policy
