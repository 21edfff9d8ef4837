"""`chairlift simulate`: its flags, what it prints and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.models.resolve import DEFAULT_MODEL

SMALL = ["simulate", "--num-prompts", "40", "--request-rate", "20", "--prompt", "100", "--output", "lognormal:20:1:100"]


def figures(tmp_path: Path, *flags: str) -> dict[str, object]:
    path = tmp_path / "figures.json"
    assert main([*SMALL, *flags, "--output-json", str(path)]) == 0
    values: dict[str, object] = json.loads(path.read_text())
    return values


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--goodput", "ttft:1000"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "requests      40 completed of 40"
    assert any(line.startswith("inter-token latency") for line in lines)
    assert any(line.startswith("goodput") and line.endswith("100.0 % of all") for line in lines)
    assert captured.err == ""


def test_figures_and_requests_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = tmp_path / "requests.jsonl"
    values = figures(tmp_path, "--requests-jsonl", str(requests), "--token-times", "--percentiles", "50,99.9")
    rows = [json.loads(line) for line in requests.read_text().splitlines()]
    assert values["completed"] == len(rows) == 40
    assert {"p99.9_ttft_ms", "p50_itl_ms", "mean_e2el_ms"} <= values.keys()
    assert values["total_output_tokens"] == sum(len(row["token_times"][0]) for row in rows)
    mean_ttft_s = sum(row["token_times"][0][0] - row["arrival"] for row in rows) / len(rows)
    assert values["mean_ttft_ms"] == pytest.approx(mean_ttft_s * 1e3)


def test_joins_by_the_peak_of_tokens(tmp_path: Path) -> None:
    """Answers in a cache that only some fit into: nobody is preempted for another, as somebody is without the rule."""
    flags = ["--kv-cache-tokens", "1200", "--prompt", "100", "--output", "100", "--watermark", "0"]
    assert figures(tmp_path, *flags)["num_preemptions"] != 0
    ruled = figures(tmp_path, *flags, "--join-by-peak", "10")
    assert ruled["num_preemptions"] == 0 and ruled["completed"] == 40
    kept = figures(tmp_path, *flags, "--kv-reservation", "max")
    engines = [values["replicas"] for values in (ruled, kept)]
    assert all(isinstance(replicas, list) for replicas in engines)
    most = [replicas[0]["max_running"] for replicas in engines if isinstance(replicas, list)]
    assert most[0] > most[1] == 5


def test_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Other hash seeds put sets into another order: nothing may depend on that."""
    tenants = ["--tenant", "a,request-rate=9,turns=uniform:1:3,prefix=32", "--tenant", "b,priority=1"]
    policy = ["--scheduling-policy", "fair", "--tenant-weights", "a=2", "--kv-cache-tokens", "400", "--noise", "0.1"]
    fleet = ["--replicas", "2", "--router", "prefix-aware"]
    written = []
    for seed in ("1", "2"):
        paths = [tmp_path / f"{name}-{seed}" for name in ("json", "jsonl")]
        files = ["--output-json", str(paths[0]), "--requests-jsonl", str(paths[1]), "--token-times"]
        done = subprocess.run(
            [sys.executable, "-m", "chairlift", *SMALL, *tenants, *policy, *fleet, *files],
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        written.append([done.stdout, *(path.read_bytes() for path in paths)])
    assert written[0] == written[1]
    assert json.loads(written[0][1])["num_preemptions"] > 0


def test_a_seed_changes_the_draw_and_nothing_else_does(tmp_path: Path) -> None:
    same = [figures(tmp_path), figures(tmp_path), figures(tmp_path, "--seed", "0")]
    assert same[0] == same[1] == same[2] != figures(tmp_path, "--seed", "1")


def test_engines_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ["--replica", "count=2,device=l4,max-num-seqs=8", "--replica", "device=h200,no-enable-prefix-caching"]
    values = figures(tmp_path, *fleet)
    replicas = values["replicas"]
    assert isinstance(replicas, list) and [r["name"] for r in replicas] == ["engine-0", "engine-1", "engine-2"]
    steps = [r["busy_s"] / r["num_steps"] for r in replicas]
    assert steps[0] > 5 * steps[2] and max(r["max_running"] for r in replicas[:2]) <= 8
    assert "engine-2" in capsys.readouterr().out


def test_tenants_have_flags_of_their_own(tmp_path: Path) -> None:
    values = figures(tmp_path, "--tenant", "chat,request-rate=50,prompt=50", "--tenant", "batch,num-prompts=7,users=2")
    tenants = values["tenants"]
    assert isinstance(tenants, list)
    assert [(row["principal"], row["completed"]) for row in tenants] == [("batch", 7), ("chat", 40)]
    assert tenants[1]["total_input_tokens"] == 40 * 50


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_held_batches(batching: str, tmp_path: Path) -> None:
    values = figures(tmp_path, "--batching", batching, "--max-num-seqs", "8")
    replicas = values["replicas"]
    assert values["completed"] == 40 and isinstance(replicas, list) and replicas[0]["num_filler_rows"] > 0


def test_a_trace_is_known_by_what_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
    path.write_text("".join(json.dumps(line | {"timestamp": 1000 * i}) + "\n" for i in range(3)))
    assert main(["simulate", "--trace", str(path), "--endless-cache"]) == 0
    # 592 of 600, twice
    assert "65.8 % of 1800 prompt tokens found, 65.8 % by an endless cache" in capsys.readouterr().out
    assert main(["simulate", "--trace", str(path), "--no-shared-prefixes", "--num-prompts", "2"]) == 0
    assert "0.0 % of 1200 prompt tokens found" in capsys.readouterr().out
    assert main(["simulate", "--trace", str(path), "--speed-up", "1000", "--duration", "0.0015"]) == 0
    assert "2 completed of 2" in capsys.readouterr().out


def test_a_batch_file_in_tokens_or_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.jsonl"
    body = {"prompt": "Unbelievable, internationally.", "max_tokens": 5}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    path.write_text(json.dumps(line) + "\n" + json.dumps(line | {"custom_id": "2"}) + "\n")
    assert main(["simulate", "--trace", str(path)]) == 0
    assert "4 in, 10 out" in capsys.readouterr().out
    assert main(["simulate", "--trace", str(path), "--tokenizer", DEFAULT_MODEL, "--request-rate", "0.1"]) == 0
    out = capsys.readouterr().out
    num_in = int(out.split("tokens ")[1].split(" in")[0])
    assert num_in > 8 and num_in % 2 == 0
    assert float(out.split("simulated ")[1].split(" s")[0]) > 1.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--request-rate", "0"], "above 0"),
        (["--prompt", "many"], "not lengths"),
        (["--on-off", "5"], "--on-off"),
        (["--rate-phases", "5"], "not phases"),
        (["--tenant", "a,colour=red"], "no flag of a tenant"),
        (["--tenant", "a", "--tenant", "a"], "same name"),
        (["--tenant", "a,priority=high"], "must be a number"),
        (["--replica", "colour=red"], "--replica"),
        (["--replica", "count=x"], "--replica"),
        (["--device", "abacus"], "no such device"),
        (["--model", "nothing"], "no such model"),
        (["--goodput", "itl:5"], "--goodput"),
        (["--percentiles", "101"], "--percentiles"),
        (["--duration", "0"], "--duration"),
        (["--users", "2", "--num-prompts", "5", "--batching", "static"], "waits for ever"),
        (["--trace", "/nowhere"], "no such file"),
        (["--calibration", "/nowhere"], "cannot read /nowhere"),
        (["--output-json", "/nowhere/x"], "no such folder"),
        (["--noise", "-1"], "--noise"),
        (["--e2e-deadline-ms", "0"], "deadline"),
    ],
)
def test_mistakes_are_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_plain_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = figures(tmp_path, "--plain-cost", "1000", "--arrivals", "constant")
    assert values["p50_itl_ms"] == pytest.approx(1.0)
    with pytest.raises(SystemExit):
        main([*SMALL, "--plain-cost", "fast"])


def test_a_journal_of_a_simulation_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it costs to be recorded is time only: the figures are those of a run that skips quiet steps."""
    path = tmp_path / "journal"
    tight = ["--kv-cache-tokens", "400", "--turns", "uniform:1:3"]
    assert figures(tmp_path, *tight, "--journal", str(path)) == figures(tmp_path, *tight)
    capsys.readouterr()
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.endswith(" steps: equal\n")
    assert main([*SMALL, "--replicas", "2", "--journal", str(path)]) == 2
