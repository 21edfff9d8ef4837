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
    assert lines[0].startswith("engine        llama-3.1-8b ") and " sequences and " in lines[0]
    assert lines[1] == "requests      40 completed of 40"
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
    num_in = int(out.split("\ntokens ")[1].split(" in")[0])
    assert num_in > 8 and num_in % 2 == 0
    assert float(out.split("simulated ")[1].split(" s")[0]) > 1.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--request-rate", "0"], "above 0"),
        (["--prompt", "many"], "not lengths"),
        (["--on-off", "5"], "--on-off"),
        (["--tenant", "a,rate-phases=5"], "no flag of a tenant"),
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
        (["--tenant", "a,users=2,num-prompts=5", "--batching", "static"], "waits for ever"),
        (["--rate-phases", "5:2"], "leave out --request-rate"),
        (["--users", "2"], "leave out --request-rate"),
        (["--arrivals", "constant", "--burstiness", "2"], "--burstiness is of gamma gaps"),
        (["--start", "5", "--max-think-s", "7"], "leave out --max-think-s, --start: there is no --trace"),
        (["--kv-link-ms", "5"], "--kv-link-ms is of the link that --split makes"),
        (["--split", "5000:1"], "at most 4096"),
        (["--replica", "count=0"], "at least 1 engine"),
        (["--replica", "count=3", "--replicas", "2"], "leave one of them out"),
        (["--until", "nan"], "--until must be above 0"),
        (["--until", "1e-9"], "asks nothing before 1e-09 s"),
        (["--token-times"], "--token-times is about --requests-jsonl"),
        (["--slots-from", "5"], "--slots-from is about --report"),
        (["--goodput", "ttft:5", "ttft:6"], "one limit of each kind"),
        (["--max-num-batched-tokens", "0"], "at least 1"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "at most max_num_batched_tokens"),
        (["--kv-cache-tokens", "0"], "the cache must hold a block"),
        (["--prompt", "1000000000"], "at most 16777216"),
        (["--tenant", "a,num-prompts=-5"], "at least 0"),
        (["--on-off", "1e-12:1"], "fewer than 0.0001 arrivals"),
        (["--preset", "lesson", "--scheduling-policy", "fair"], "leave out"),
        (["--trace", "/nowhere"], "no such file"),
        (["--calibration", "/nowhere"], "cannot read /nowhere"),
        (["--output-json", "/nowhere/x"], "no such folder"),
        (["--noise", "measured"], "--noise measured needs a --calibration"),
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


def test_a_trace_says_who_asks_when_and_for_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that it does not heed is a mistake: the figures would be taken for those of another workload."""
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,prompt_len,output_len\n0,10,5\n1,10,5\n")
    flags = ["--trace-format", "timed", "--request-rate", "5", "--output", "7"]
    assert main(["simulate", "--trace", str(path), *flags]) == 2
    assert "leave out --output, --request-rate: a trace (timed) says that itself, and --sp" in capsys.readouterr().err
    assert main(["simulate", "--trace", str(path), "--trace-format", "lengths", "--request-rate", "5"]) == 0


def test_two_results_do_not_take_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    for flags in (["--report", str(path), "--output-json", str(path)], ["--trace", str(path), "--report", str(path)]):
        assert main(["simulate", *flags]) == 2
        assert "are the same file" in capsys.readouterr().err and path.read_text() == "before"


def test_what_was_refused_or_cut_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--output", "50", "--max-model-len", "120"]) == 0
    assert "40 completed of 40 (40 cut at the longest sequence" in capsys.readouterr().out
    assert main([*SMALL, "--max-model-len", "50"]) == 0
    assert "refused       40, the first because " in capsys.readouterr().out


def test_a_tenant_that_got_nothing_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    tenants = ["--tenant", "a", "--tenant", "b,prompt=5000"]
    assert main([*SMALL, *tenants, "--max-model-len", "4000", "--percentiles", "50,90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split()[-6:] == ["E2E", "p50", "ms", "E2E", "p90", "ms"]
    assert lines[-2].split()[:4] == ["a", "40", "of", "40"] and "-" not in lines[-2]
    assert lines[-1].split() == ["b", "0", "of", "40", "0", "0", "0.0", "-", "-", "-", "-"]


def test_fewer_tokens_a_step_are_fewer_slots(tmp_path: Path) -> None:
    """And not more tokens than were asked for."""
    values = figures(tmp_path, "--max-num-batched-tokens", "8", "--plain-cost", "1000")
    replicas = values["replicas"]
    assert isinstance(replicas, list) and replicas[0]["num_chunk_tokens"] <= 8 * replicas[0]["num_steps"]
    assert replicas[0]["max_running"] <= 8


def test_users_ask_until_the_time_is_over(tmp_path: Path) -> None:
    requests, asked = tmp_path / "r.jsonl", ["--users", "3", "--duration", "2", "--prompt", "10", "--output", "10"]
    assert main(["simulate", *asked, "--plain-cost", "10000", "--requests-jsonl", str(requests)]) == 0
    arrivals = [json.loads(line)["arrival"] for line in requests.read_text().splitlines()]
    assert len(arrivals) == 3 * 20 and max(arrivals) == pytest.approx(1.9)


def test_pools_have_names(tmp_path: Path) -> None:
    replicas = figures(tmp_path, "--split", "1:2")["replicas"]
    assert isinstance(replicas, list) and [r["name"] for r in replicas] == ["prefill-0", "decode-0", "decode-1"]


def test_control_c_gives_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    endless = ["--duration", "1e9", "--request-rate", "50", "--replicas", "2", "--output-json", str(path)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", STOPPED, "simulate", *endless]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert "this is how far it came" in done.stderr and "Traceback" not in done.stderr
    values = json.loads(path.read_text())
    assert values["completed"] > 0 and values["unfinished"] > 0 and "requests/s" in done.stdout


STOPPED = """
import signal, sys
from chairlift.cli.main import main
from chairlift.sim.run import Simulation

arrive, num = Simulation._arrive, 0

def interrupted(self, *arguments):
    global num
    num += 1
    if num == 3000:
        signal.raise_signal(signal.SIGINT)
    return arrive(self, *arguments)

Simulation._arrive = interrupted
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], ["llama-3.1-8b (bfloat16) on h100, by data sheet", "256 sequences and 2048 tokens a step at most, fcfs"]),
        (
            ["--device", "l4", "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8", "--step-factor", "1.5"],
            ["llama-3.1-8b (bfloat16, cached in fp8) on 2 x l4, by data sheet, steps times 1.5"],
        ),
        (["--plain-cost", "5000:20"], ["steps of 5000 us, 20 a row", "cache of 1048576 tokens in blocks of 16;"]),
        (["--plain-cost", "lesson", "--no-enable-prefix-caching"], ["the device of the lesson", ", no prefix cache;"]),
        (
            ["--replica", "count=2,plain-cost=5000,noise=0.1", "--replica", "max-num-seqs=8"],
            ["engine        2 x steps of 5000 us", "noise 0.1", "engine        1 x llama-3.1-8b", "; 8 sequences and"],
        ),
    ],
)
def test_what_is_assumed_is_said(flags: list[str], says: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--num-prompts", "2", "--output", "3", *flags]) == 0
    out = capsys.readouterr().out
    assert all(text in out for text in says), out
