"""Runs of other engines that nobody gave us yet: files of the same kinds, written here, with other names and settings.

They are simulated runs, written down as if somebody had measured them: what reads them has to find them again.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from chairlift.core.errors import InvalidOption
from chairlift.sim.calibrate.from_profile import steps_of_profile
from chairlift.sim.cost import HostCosts, SmoothCost, device_named, smooth_roofline, transformer_named
from chairlift.sim.cost.plain import PlainCost
from chairlift.sim.cost.smooth import Coefficients
from chairlift.sim.traces.tables import timed
from measured_vllm import VllmRun, fitted, off, vllm_result, vllm_runs
from measured_vtc import (
    ADAPTER_TOKENS,
    Answered,
    Scheduling,
    VtcRun,
    answered,
    served_by_then,
    vtc_result,
    vtc_runs,
    vtc_setup,
)

A10G = smooth_roofline(transformer_named("llama-2-7b"), device_named("a10g"), host=HostCosts(0.04, overlaps=True))


# ---------------------------------------------------------------- S-LoRA


def rate(client: str, gap_s: float, number: int, sizes: tuple[int, int] = (256, 256)) -> list[Answered]:
    """So many requests of a client, evenly."""
    return [Answered(client, *sizes, gap_s * (i + 1), 0.0, 0.0) for i in range(number)]


def write_answers(path: Path, answers: Iterable[Answered], column: str = "client") -> None:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [column, "prompt_len", "output_len", "req_time", "first_token_latency", "request_latency", "note"]
        )
        for one in answers:
            first, end = one.first_token - one.arrival, one.finished - one.arrival
            writer.writerow([one.client, one.num_prompt, one.num_output, one.arrival, first, end, "x"])


def served(run: VtcRun) -> list[Answered]:
    return answered(vtc_result(run, vtc_setup(A10G, run)))


def test_weighted_clients_are_found_again(tmp_path: Path) -> None:
    """Weights stand in the manifest, or follow from the command that made the run; service is in proportion."""
    asked = [one for number in range(4) for one in rate(f"lora-{number}", 0.3, 30)]
    weights = {f"lora-{number}": float(number + 1) for number in range(4)}
    run = VtcRun("WVTC__overload-weighted", Scheduling("fair"), 9.0, asked, weights, pool_tokens=4000)
    write_answers(tmp_path / "WVTC__overload-weighted.csv.gz", served(run), "adapter_dir")
    write_answers(tmp_path / "VTC__more.csv.gz", served(run))
    config = {"num_adapters": 4, "mode": "uniform", "max_total_token_num": 4000, "duration": None}
    manifest = [
        {"file": "WVTC__overload-weighted.csv.gz", "config": config, "extra_keys": []},
        {"file": "VTC__more.csv.gz", "config": config | {"fair_weights": [1, 2, 3, 4]}},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = {one.name: one for one in vtc_runs(tmp_path)}
    assert set(found) == {"WVTC__overload-weighted", "VTC__more"}
    for one in found.values():
        assert (one.weights, one.pool_tokens, one.step_tokens, one.duration_s) == (weights, 4000, 3072, 9.0)
        again, before = served(one), one.answers
        assert served_by_then(again, 40.0) == pytest.approx(served_by_then(before, 40.0), rel=0.02)
    service = served_by_then(found["VTC__more"].answers, 40.0)
    assert service["lora-3"] > 2.0 * service["lora-0"]


def test_runs_without_a_manifest_are_read_and_those_of_unknown_orders_named(tmp_path: Path) -> None:
    """On-off clients, other lengths, plain files, refused requests; a cache of which a sixth is prompt in one step."""
    asked = rate("0", 0.25, 60, (32, 128)) + [replace(one, arrival=one.arrival + 10.0) for one in rate("1", 0.5, 30)]
    run = VtcRun("FCFS__poisson_short_long", Scheduling("fcfs"), 25.0, asked, pool_tokens=35_000, step_tokens=5833)
    first, *rest = served(run)
    refused = replace(first, first_token=first.arrival - 1.0, finished=first.arrival - 1.0)
    write_answers(tmp_path / "FCFS__poisson_short_long.csv", [refused, *rest])
    write_answers(tmp_path / "LCF__dist_shift.csv.gz", rest)
    write_answers(tmp_path / "VTC_profile__real.csv.gz", rest)
    write_answers(tmp_path / "VTC_oracle__overload.csv.gz", rest)
    left: list[str] = []
    found = {one.name: one for one in vtc_runs(tmp_path, left.append)}
    assert set(found) == {"FCFS__poisson_short_long", "VTC_oracle__overload"}
    assert [text.partition(":")[0] for text in left] == ["LCF__dist_shift.csv.gz", "VTC_profile__real.csv.gz"]
    one = found["FCFS__poisson_short_long"]
    assert len(one.answers) == len(rest)
    assert (one.duration_s, one.scheduling.order) == (25.0, "fcfs")
    assert found["VTC_oracle__overload"].scheduling == Scheduling("fair", charges_ahead=True)
    setup = vtc_setup(A10G, replace(one, pool_tokens=35_000, step_tokens=5833))
    assert (setup.max_num_batched_tokens, setup.num_blocks) == (5833, 70_000)


def test_published_counters_swing_and_ours_do_not() -> None:
    """Two clients in backlog: the difference of their service changes its sign under the one, not under the other."""
    asked = rate("0", 0.5, 100) + rate("1", 0.25, 200)
    signs = {}
    for charges_ahead in (False, True):
        run = VtcRun("VTC", Scheduling("fair", charges_ahead=charges_ahead), 60.0, asked)
        answers = served(run)
        gaps = [service["1"] - service["0"] for time in range(20, 61, 5) for service in [served_by_then(answers, time)]]
        signs[charges_ahead] = sum(a * b < 0.0 for a, b in pairwise(gaps))
    assert signs[False] >= 2
    assert signs[True] == 0


def test_what_adapters_take_of_the_cache_grows_with_clients() -> None:
    """As many requests of the same size run at once, or fewer where each belongs to somebody else."""
    running = {}
    for num_clients in (1, 100):
        asked = [replace(one, client=str(i % num_clients), arrival=0.0) for i, one in enumerate(rate("0", 1.0, 100))]
        answers = served(VtcRun("FCFS", Scheduling("fcfs"), 1.0, asked))
        running[num_clients] = sum(one.first_token < 5.0 for one in answers)
    assert running[100] == (10_000 - running[100] * ADAPTER_TOKENS) // 512 < running[1]


# ---------------------------------------------------------------- vLLM

GIB = 1 << 30
WEIGHT_BYTES = 2 * transformer_named("llama-3.1-8b").num_parameters
KERNELS = SmoothCost(Coefficients(weights_s=0.016, token_s=6e-5))


def write_profile(folder: Path, prefix: str, layers: int) -> None:
    """Tables of a device whose step takes what `KERNELS` says, all of it in one part of the layers."""
    folder.mkdir(exist_ok=True)
    shapes = [(0, 0, rows, context) for rows in (1, 4, 16, 64, 256) for context in (16, 256, 1024, 4096)]
    shapes += [(chunk, cached, rows, 256 * (rows > 0)) for chunk in (16, 128, 512, 2048) for cached in (0, 512, 2048)
               for rows in (0, 8, 64)]  # fmt: skip
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 512, 576, 1024, 2048, 2112, 2304)
    tables: Mapping[str, tuple[list[str], list[tuple[Any, ...]]]] = {
        "attention": (
            ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"],
            [(*shape, 1.0) for shape in shapes],
        ),
        "dense": (
            ["layer", "tokens", "time_us", "extra"],
            [("qkv_proj", size, KERNELS.body_s(size) / layers * 1e6, 0) for size in sizes],
        ),
        "per_sequence": (["layer", "sequences", "time_us"], [("lm_head", 1, 1.0), ("lm_head", 256, 1.0)]),
    }
    for name, (header, rows) in tables.items():
        with (folder / f"{prefix}__{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])


def write_workload(path: Path, number: int) -> None:
    """Prompts that begin with the same 64 tokens."""
    with gzip.open(path, "wt") as file:
        for i in range(number):
            row = {"arrival_time_ns": 50_000_000 * i, "input_toks": 200 + i, "output_toks": 60 + i % 7, "sub": None}
            file.write(json.dumps(row | {"blocks16": [[0, 3], [100 * i + 10, 100 * i + 14]]}) + "\n")


def write_run(folder: Path, name: str, run: VllmRun, host_s: float, *, clocks: bool = True) -> None:
    """The requests of a run, as vLLM would have written them on a host that adds so much to each step."""
    result = vllm_result(run, run.kernels.with_host(HostCosts(host_s)))
    with (folder / f"measured__{name}__vllm_requests.jsonl").open("w") as file:
        for i, one in enumerate(result.served):
            assert one.first_token is not None and one.finished is not None
            row = {"request_id": f"bench-{i}", "input_toks": one.asked.prompt.num_tokens, "later": {}}
            row |= {"output_toks": one.num_output_tokens, "queued_ts": 4000.0 + one.asked.arrival}
            row |= {"first_token_ts": 4000.0 + one.first_token, "last_token_ts": 4000.0 + one.finished}
            file.write(json.dumps(row | ({"arrival_time": 1.7e9 + one.asked.arrival} if clocks else {})) + "\n")


ENGINE: Mapping[str, Any] = {"max_num_seqs": 24, "max_num_batched_tokens": 512}


def begin_run(folder: Path, name: str, meta: Mapping[str, Any], number: int = 60) -> VllmRun:
    """A run that asks `number` requests of a workload, with a first guess of its answers."""
    (folder / f"measured__{name}__vllm_meta.json").write_text(json.dumps(meta))
    rows = [
        {"input_toks": 200 + i, "output_toks": 60 + i % 7, "queued_ts": 1.0 + i / 20, "first_token_ts": 9.0 + i}
        for i in range(number)
    ]
    lines = "".join(json.dumps(row | {"last_token_ts": 99.0 + i}) + "\n" for i, row in enumerate(rows))
    (folder / f"measured__{name}__vllm_requests.jsonl").write_text(lines)
    return next(run for run in vllm_runs(folder) if run.name == name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile", "H100__meta-llama__Llama-3.1-8B-Instruct__tp1", 32)
    write_workload(tmp_path / "chat-300.blocks.jsonl.gz", 80)
    return tmp_path


def test_what_a_run_says_of_its_engine_counts(folder: Path) -> None:
    cache = {"num_gpu_blocks": 300, "num_cpu_blocks": None, "block_size": 32, "enable_prefix_caching": False}
    meta = {
        "model": "/data/model/Llama-3.1-8B-Instruct",
        "engine_kwargs": {**ENGINE, "tensor_parallel_size": 1, "max_model_len": None, "kv_cache_dtype": "fp8"},
        "dataset_path": "workloads/chat-300.jsonl",
        "kv_cache": cache,
        "resolved_config": {"scheduler_config": {"enable_chunked_prefill": False, "watermark": 0.01}},
    }
    run = begin_run(folder, "H100__Llama-3.1-8B-Instruct", meta)
    setup = run.setup
    assert (setup.max_num_seqs, setup.max_num_batched_tokens, setup.num_blocks) == (24, 512, 300)
    assert (setup.block_size, setup.enable_prefix_caching, run.num_replicas) == (32, False, 1)
    assert (setup.policy.enable_chunked_prefill, setup.policy.watermark) == (False, 0.01)
    assert len(run.workload) == 60
    assert run.kernels.body_s(256) == pytest.approx(KERNELS.body_s(256), rel=0.02)


def test_what_a_run_does_not_say_is_the_default_and_memory_gives_the_cache(folder: Path) -> None:
    name = "H100__Llama-3.1-8B"
    run = begin_run(folder, name, {})
    assert run.setup.num_blocks == (int(80 * GIB * 0.9) - 2 * GIB - WEIGHT_BYTES) // (131_072 * 16)  # by the data sheet
    memory = {"mem_size": 24, "mem_util": 0.833919}
    config = {"nodes": [{"instances": [{"npu_mem": memory, "tp_size": 1, "model_name": "meta-llama/Llama-3.1-8B"}]}]}
    (folder / f"measured__{name}__config.json").write_text(json.dumps(config))
    (folder / f"measured__{name}__vllm_meta.json").unlink()
    (run,) = vllm_runs(folder)
    # As LLMServingSim's own file says it for an RTX 4090 whose vLLM had 2,588.
    assert run.setup.num_blocks == pytest.approx(2588, abs=1)
    assert (run.setup.max_num_seqs, run.setup.max_num_batched_tokens, run.setup.block_size) == (256, 2048, 16)
    assert (run.setup.policy.watermark, run.setup.policy.max_bypass) == (0.0, 0)


@pytest.mark.parametrize(("true_host_s", "says"), [(0.004, "ms added"), (0.0, "")])
def test_a_run_is_found_again_and_its_host_with_it(folder: Path, true_host_s: float, says: str) -> None:
    """Under preemption: 8 requests fit into the cache."""
    name = "H100__Llama-3.1-8B"
    meta = {"engine_kwargs": ENGINE, "kv_cache": {"num_gpu_blocks": 150}}
    begun = begin_run(folder, name, meta)
    write_run(folder, name, begun, true_host_s)
    (run,) = vllm_runs(folder)
    found = fitted(run)
    result = vllm_result(run, found.cost)
    assert result.replicas[0].scheduler.stats().num_preemptions > 3
    assert result.replicas[0].scheduler.stats().prefix_hits > 0
    assert says in found.words
    assert found.host_s == pytest.approx(true_host_s, abs=2e-4)
    for statistic, (measured, simulated) in off(run, result).items():
        assert simulated == pytest.approx(measured, rel=0.02), statistic


def test_kernels_that_are_slower_than_the_run_are_scaled(folder: Path) -> None:
    name = "H100__Llama-3.1-8B"
    begun = begin_run(folder, name, {"engine_kwargs": ENGINE, "kv_cache": {"num_gpu_blocks": 4000}})
    quick = replace(begun.kernels.coefficients, weights_s=0.0144, token_s=5.4e-5)
    write_run(folder, name, replace(begun, kernels=SmoothCost(quick)), 0.0)
    (run,) = vllm_runs(folder)
    found = fitted(run)
    assert found.factor == pytest.approx(0.9, abs=0.02)
    for statistic, (measured, simulated) in off(run, vllm_result(run, found.cost)).items():
        assert simulated == pytest.approx(measured, rel=0.05), statistic


def test_two_engines_beside_each_other_share_what_is_asked(folder: Path) -> None:
    cache = {"num_gpu_blocks": 600, "num_kv_tokens": 9600}
    meta = {"engine_kwargs": {**ENGINE, "data_parallel_size": 2}, "kv_cache": cache}
    run = begin_run(folder, "H100__Llama-3.1-8B", meta)
    assert (run.num_replicas, run.setup.num_blocks) == (2, 300)
    result = vllm_result(run, run.kernels)
    assert all(replica.scheduler.stats().prefix_queries > 0 for replica in result.replicas)
    assert len(result.completed) == 60


def test_links_between_devices_cost_what_the_run_says_of_them(folder: Path) -> None:
    """Two sums in each of 32 layers, of 4096 numbers for each token; the profile is that of half a model."""
    write_profile(folder / "profile", "H100__meta-llama__Llama-3.1-8B__tp2", 32)
    for link_gb_s, latency_ns in ((16, 20_000), (64, 1000)):
        name = "H100__Llama-3.1-8B"
        config = {"link_bw": link_gb_s, "link_latency": latency_ns, "nodes": []}
        (folder / f"measured__{name}__config.json").write_text(json.dumps(config))
        run = begin_run(folder, name, {"engine_kwargs": {**ENGINE, "tensor_parallel_size": 2}})
        step_s = run.kernels.decode_line(64).seconds(64 * 256)
        sums_s = 64 * (2 * latency_ns / 1e9 + 64 * 8192 / (link_gb_s * 1e9))
        assert step_s == pytest.approx(KERNELS.body_s(64) + sums_s, rel=0.05)


def test_runs_that_cannot_be_read_are_named(folder: Path) -> None:
    begin_run(folder, "H100__Llama-3.1-8B", {})
    source = folder / "measured__H100__Llama-3.1-8B__vllm_requests.jsonl"
    shutil.copy(source, folder / "measured__H100__Mystery-9B__vllm_requests.jsonl")
    shutil.copy(source, folder / "measured__RTX4090__Llama-3.1-8B__vllm_requests.jsonl")
    left: list[str] = []
    assert [run.name for run in vllm_runs(folder, left.append)] == ["H100__Llama-3.1-8B"]
    assert len(left) == 2
    assert "Mystery-9B" in left[0]
    assert "no profile of llama-3.1-8b on 1 x RTX4090" in left[1]


def test_without_a_workload_the_requests_say_what_was_asked(folder: Path) -> None:
    begin_run(folder, "H100__Llama-3.1-8B", {})
    (folder / "chat-300.blocks.jsonl.gz").unlink()
    (run,) = vllm_runs(folder)
    assert [one.arrival for one in run.workload[:3]] == pytest.approx([0.0, 0.05, 0.1])
    assert [one.prompt.num_tokens for one in run.workload[:3]] == [200, 201, 202]
    assert vllm_result(run, run.kernels).replicas[0].scheduler.stats().prefix_hits == 0


# ---------------------------------------------------------------- the same by hand


def requests_of_command(tmp_path: Path, *flags: str) -> dict[float, tuple[float, float]]:
    """First token and end by arrival, as `chairlift simulate` writes them with these flags."""
    path = tmp_path / "requests.jsonl"
    argv = ["simulate", "--plain-cost", "20000:100:0.1:60", *flags, "--requests-jsonl", str(path), "--disable-tqdm"]
    assert main(argv) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["arrival"]: (row["first_token"], row["finished"]) for row in rows}


BY_HAND = PlainCost(20000e-6, 100e-6, 0.1e-6, 60e-6)


@pytest.mark.parametrize("scheduler", ["VTC", "FCFS", "WVTC"])
def test_the_command_for_s_lora_is_what_the_benchmark_does(tmp_path: Path, scheduler: str) -> None:
    asked = [*rate("0", 0.4, 30, (200, 60)), *rate("1", 0.23, 60, (20, 150))]
    asked = [replace(one, first_token=one.arrival, finished=one.arrival) for one in asked]
    write_answers(path := tmp_path / f"{scheduler}__x.csv.gz", sorted(asked, key=lambda one: one.arrival))
    (run,) = vtc_runs(tmp_path)
    run = replace(run, pool_tokens=2000)
    text = (
        "--kv-cache-tokens 2000 --block-size 1 --no-enable-prefix-caching --join-by-peak 10 --adapter-tokens 32 "
        "--prefill-first --no-enable-chunked-prefill --max-num-batched-tokens 3072 --max-num-seqs 1000 --max-bypass 0 "
        "--watermark 0"
    )
    text += "" if scheduler == "FCFS" else " --scheduling-policy fair --no-charge-ahead"
    text += " --tenant-weights 0=1,1=2" if scheduler == "WVTC" else ""
    by_hand = requests_of_command(tmp_path, "--trace", str(path), *text.split())
    found = {one.arrival: (one.first_token, one.finished) for one in answered(vtc_result(run, vtc_setup(BY_HAND, run)))}
    assert found == by_hand


def test_the_command_for_vllm_is_what_the_benchmark_does(folder: Path, tmp_path: Path) -> None:
    meta = {"engine_kwargs": ENGINE, "kv_cache": {"num_gpu_blocks": 150, "block_size": 16}}
    run = begin_run(folder, "H100__Llama-3.1-8B", meta, number=80)
    text = "--max-num-seqs 24 --max-num-batched-tokens 512 --kv-cache-tokens 2400 --max-bypass 0 --watermark 0"
    by_hand = requests_of_command(tmp_path, "--trace", str(folder / "chat-300.blocks.jsonl.gz"), *text.split())
    result = vllm_result(run, BY_HAND)
    assert result.replicas[0].scheduler.stats().prefix_hits > 0
    assert {one.asked.arrival: (one.first_token, one.finished) for one in result.served} == by_hand


def test_refused_requests_of_a_trace_are_left_out_and_shared_blocks_shared(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    row = {"arrival_time_ns": 0, "input_toks": 40, "output_toks": 5}
    rows = [row | {"blocks16": [[0, 0], [5, 5]]}, row | {"first_token_latency": -1}, row | {"blocks16": [[0, 0]]}]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    first, second = [one.prompt.tokens() for one in timed(path)]
    assert len(first) == len(second) == 40
    assert [a == b for a, b in zip(first, second, strict=True)] == [True] * 16 + [False] * 24
    for wrong in ([[1]], [[2, 1]], [[0, 9]], "x", [[-1, 0]], [[1 << 30, 1 << 30]]):
        path.write_text(json.dumps(row | {"blocks16": wrong}))
        with pytest.raises(InvalidOption, match="blocks16"):
            list(timed(path))


def test_steps_that_a_server_measured_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"8": {"1": [10, 0.002, 0.0001], "65": [4, 0.003, 0.32]}}))
    steps = steps_of_profile(path, 1)
    assert [(step.shape.num_rows, step.shape.num_context_tokens) for step in steps] == [(0, 0), (0, 0), (4, 160)]
    assert [step.step_s for step in steps] == pytest.approx([0.02, 0.012, 0.02])
    wrongs: list[Any] = [[], {"8": [1]}, {"8": {"1": [10, 0.0, 0.1]}}, {"8": {"x": [1, 1, 1]}}, {"0": {"1": [1, 1, 1]}}]
    for wrong in wrongs:
        path.write_text(json.dumps(wrong))
        with pytest.raises(InvalidOption, match=r"cost\.json"):
            steps_of_profile(path, 1)
