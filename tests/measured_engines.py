"""Runs of other engines that others measured, request by request, and the same runs on the simulator.

Every run of the two kinds that lies in a folder of traces is found, those that were put there later too.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chairlift.core.policy import OrderName, Policy
from chairlift.metrics.latency import Summary, summarize
from chairlift.sim.calibrate.fit import fit
from chairlift.sim.calibrate.from_profile import steps_of_profile
from chairlift.sim.cost import HostCosts, SmoothCost, Transformer, device_named, smooth_roofline, transformer_named
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.result import Result, latencies
from chairlift.sim.router import RoundRobin
from chairlift.sim.rules.peak import PeakTokens
from chairlift.sim.run import simulate
from chairlift.sim.workload import Asked, Blocks, Contents, Part
from measured_runs import vtc_steps

PERCENTS = (50.0, 99.0)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request as it was served; times in seconds from the start of the run."""

    client: str
    num_prompt: int
    num_output: int
    arrival: float
    first_token: float
    finished: float


def asked_of(answers: list[Answered]) -> list[Asked]:
    """The same requests, to be served again: no two of them share anything."""
    return [
        Asked(
            arrival=one.arrival,
            prompt=Blocks((Part(number, number, one.num_prompt),), one.num_prompt),
            num_output=one.num_output,
            principal=one.client,
        )
        for number, one in enumerate(answers, 1)
    ]


def answered(result: Result) -> list[Answered]:
    """What was simulated, of requests that are over."""
    return [
        Answered(
            served.asked.principal,
            served.asked.prompt.num_tokens,
            served.num_output_tokens,
            served.asked.arrival,
            served.first_token,
            served.finished,
        )
        for served in result.completed
        if served.first_token is not None and served.finished is not None
    ]


# ---------------------------------------------------------------- S-LoRA, by the artifact of VTC

VTC_ORDERS: dict[str, OrderName] = {"VTC": "fair", "FCFS": "fcfs"}
"""Schedulers of the artifact that order as one of ours."""
VTC_POOL_TOKENS = 10_000
VTC_STEP_TOKENS = 3072
"""Most prompt tokens that join at once: the longest request that its server takes."""
VTC_DECODES_BETWEEN = 10
"""Decode steps between two looks at its queue."""
VTC_HOST_S = 0.041
"""The one figure that is fitted: what its server takes for a step however little there is in it, of which its profile
of kernels knows nothing. On the FCFS run with an overload of two tenants; all others are predicted with it."""


@dataclass(frozen=True, slots=True)
class VtcRun:
    """One line of its manifest. `duration_s` is for how long requests came."""

    name: str
    order: OrderName
    duration_s: float
    answers: list[Answered]


def vtc_runs(traces: Path) -> list[VtcRun]:
    """The runs whose scheduler is one of `VTC_ORDERS`."""
    runs = []
    for entry in json.loads((traces / "vtc" / "manifest.json").read_text()):
        name = entry["file"].removesuffix(".csv.gz")
        order = VTC_ORDERS.get(name.partition("__")[0])
        if order is not None:
            answers = list(_vtc_answers(traces / "vtc" / entry["file"]))
            runs.append(VtcRun(name, order, float(entry["config"]["duration"]), answers))
    return runs


def _vtc_answers(path: Path) -> Iterator[Answered]:
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            arrival, first = float(row["req_time"]), float(row["first_token_latency"])
            if first >= 0.0:
                finished = arrival + float(row["request_latency"])
                sizes = int(row["prompt_len"]), int(row["output_len"])
                yield Answered(row["client"], *sizes, arrival, arrival + first, finished)


def vtc_cost(traces: Path, host: HostCosts | None = None) -> SmoothCost:
    """By the server's profile of itself, with a host of its own if one is given."""
    prior = smooth_roofline(transformer_named("llama-2-7b"), device_named("a10g"))
    cost = fit(vtc_steps(traces), prior=prior.coefficients)
    return cost if host is None else cost.with_host(host)


def vtc_setup(cost: SmoothCost, order: OrderName, *, reserves_max: bool = False) -> EngineSetup:
    """Its engine: whole prompts in steps of their own, first in line first, joins by the peak of tokens.

    With `reserves_max`, what of ours comes nearest to that without a rule: the cache for the longest answer is kept
    from the beginning.
    """
    size = 16
    return EngineSetup(
        cost=cost,
        max_num_seqs=1000,
        max_num_batched_tokens=VTC_STEP_TOKENS,
        # The rule says what fits; blocks are rounded up, and must not say otherwise.
        num_blocks=VTC_POOL_TOKENS // size * (1 if reserves_max else 2),
        block_size=size,
        enable_prefix_caching=False,
        policy=Policy(
            scheduling_policy=order,
            prefill_first=True,
            enable_chunked_prefill=False,
            kv_reservation="max" if reserves_max else "on-demand",
            watermark=0.0,
            max_bypass=0,
        ),
        join_rule=None if reserves_max else PeakTokens(VTC_POOL_TOKENS, VTC_DECODES_BETWEEN),
    )


def vtc_result(run: VtcRun, setup: EngineSetup, until: float = math.inf) -> Result:
    """The same requests on a simulated engine."""
    return simulate(asked_of(run.answers), [setup.replica("s-lora")], RoundRobin(), until=until)


def served_by_then(answers: list[Answered], until: float) -> dict[str, float]:
    """Service of each client up to a point in time: prompt tokens, and two for each token of output.

    The prompt counts when the first token comes; the others come evenly until the end.
    """
    service: defaultdict[str, float] = defaultdict(float)
    for one in answers:
        if one.first_token <= until:
            share = min(1.0, (until - one.first_token) / max(1e-9, one.finished - one.first_token))
            service[one.client] += one.num_prompt + 2.0 * (1.0 + (one.num_output - 1) * share)
    return dict(service)


def largest_gap(answers: list[Answered], until: float) -> float:
    """Between the most and the least service of clients, looked at every ten seconds."""
    clients = {one.client for one in answers}
    return max(
        max(values) - min(values)
        for time in range(10, int(until) + 1, 10)
        for service in [served_by_then(answers, time)]
        for values in [[service.get(client, 0.0) for client in clients]]
    )


def tokens_per_s(answers: list[Answered]) -> float:
    """Prompt and output tokens, over the whole run."""
    return sum(one.num_prompt + one.num_output for one in answers) / max(one.finished for one in answers)


# ---------------------------------------------------------------- vLLM, by LLMServingSim

MAX_HOST_S = 0.02


@dataclass(frozen=True, slots=True)
class VllmRun:
    """One measured run, its workload with what prompts have in common, and the engine it was measured on."""

    name: str
    workload: list[Asked]
    ttft: Summary
    tpot: Summary
    e2el: Summary
    makespan_s: float
    kernels: SmoothCost
    """What a step takes by the profile of the kernels alone."""
    setup: EngineSetup


def vllm_runs(traces: Path) -> list[VllmRun]:
    """All whose kernel profile and workload are there too."""
    folder = traces / "llmservingsim"
    runs = []
    for path in sorted(folder.glob("measured__*__vllm_meta.json")):
        name = path.name.removeprefix("measured__").removesuffix("__vllm_meta.json")
        hardware, _, model = name.partition("__")
        meta = json.loads(path.read_text())
        workload = folder / f"{Path(meta['dataset_path']).stem}.blocks.jsonl.gz"
        size = meta["engine_kwargs"].get("tensor_parallel_size", 1)
        profiles = sorted((folder / "profile").glob(f"{hardware}__*{model}__tp{size}__attention.csv.gz"))
        if workload.is_file() and profiles:
            profile = profiles[0].with_name(profiles[0].name.removesuffix("__attention.csv.gz"))
            runs.append(_vllm_run(name, meta, workload, profile))
    return runs


def _vllm_run(name: str, meta: dict[str, Any], workload: Path, profile: Path) -> VllmRun:
    folder = workload.parent
    with gzip.open(folder / f"measured__{name}__vllm_requests.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    model = transformer_named(name.partition("__")[2].lower())
    engine = meta["engine_kwargs"]
    kernels = fit(steps_of_profile(profile, model.num_layers))
    setup = EngineSetup(
        cost=kernels,
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        num_blocks=_num_blocks(folder / f"measured__{name}__config.json", meta, model),
        # The head of the queue is not passed, and nothing is kept free for those who run.
        policy=Policy(max_bypass=0, watermark=0.0),
    )
    return VllmRun(
        name,
        list(_vllm_workload(workload)),
        _summary([row["first_token_ts"] - row["queued_ts"] for row in rows]),
        _summary(
            [
                (row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1)
                for row in rows
                if row["output_toks"] > 1
            ]
        ),
        _summary([row["last_token_ts"] - row["queued_ts"] for row in rows]),
        max(row["last_token_ts"] for row in rows) - min(row["queued_ts"] for row in rows),
        kernels,
        setup,
    )


def _num_blocks(config: Path, meta: dict[str, Any], model: Transformer) -> int:
    """Cache blocks of 16 tokens: as the engine said, or what its share of the memory holds beside the weights."""
    said = next(_numbers_of_blocks(meta), None)
    if said is not None:
        return said
    memory = json.loads(config.read_text())["nodes"][0]["instances"][0]["npu_mem"]
    weights = 2 * (model.num_body_parameters + 2 * model.num_head_parameters)
    left = memory["mem_size"] * 2**30 * memory["mem_util"] - weights
    return int(left / (2 * model.num_kv_numbers * 16))


def _numbers_of_blocks(values: dict[str, Any]) -> Iterator[int]:
    """Whatever is called a number of blocks, however deep."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _numbers_of_blocks(value)
        elif key.endswith("blocks") and type(value) is int and value > 0:
            yield value


def _vllm_workload(path: Path) -> Iterator[Asked]:
    """Prompts of blocks of 16 tokens by their ids, and a rest that no other has."""
    contents = Contents(1 << 30)
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            parts = [Part(first + 1, last + 1, 16) for first, last in row["blocks16"]]
            rest = row["input_toks"] - sum(16 * (part.last - part.first + 1) for part in parts)
            if rest > 0:
                content = contents.take()
                parts.append(Part(content, content, rest))
            prompt = Blocks(tuple(parts), row["input_toks"])
            yield Asked(arrival=row["arrival_time_ns"] / 1e9, prompt=prompt, num_output=row["output_toks"])


def _summary(values: list[float]) -> Summary:
    summary = summarize(values, PERCENTS)
    if summary is None:
        raise ValueError("a run in which nothing was served")
    return summary


def vllm_result(run: VllmRun, cost: SmoothCost) -> Result:
    """The same workload on a simulated engine with these costs."""
    return simulate(run.workload, [replace(run.setup, cost=cost).replica("vllm")], RoundRobin())


def fitted_host(run: VllmRun) -> HostCosts:
    """What the host adds to each step, so that requests take as long on the average as they were measured to.

    Nothing, if they take longer already.
    """
    before, missing_before = 0.0, _missing_s(run, 0.0)
    if missing_before <= 0.0:
        return HostCosts()
    host_s = 0.002
    for _ in range(3):  # it grows with the host nearly on a line
        missing = _missing_s(run, host_s)
        if abs(missing - missing_before) < 1e-9:
            break
        after = host_s + missing * (host_s - before) / (missing_before - missing)
        before, missing_before, host_s = host_s, missing, min(max(after, 0.0), MAX_HOST_S)
    return HostCosts(host_s)


def _missing_s(run: VllmRun, host_s: float) -> float:
    """By how much requests take longer than simulated, on the average."""
    found = latencies(vllm_result(run, run.kernels.with_host(HostCosts(host_s))), PERCENTS)
    return run.e2el.mean - found["e2el"].mean


def off(run: VllmRun, result: Result) -> dict[str, tuple[float, float]]:
    """(measured, simulated) seconds of each statistic."""
    found = latencies(result, PERCENTS)
    pairs: dict[str, tuple[float, float]] = {}
    for name, measured in (("ttft", run.ttft), ("tpot", run.tpot), ("e2el", run.e2el)):
        pairs[f"{name} mean"] = measured.mean, found[name].mean
        for percent in PERCENTS:
            pairs[f"{name} p{percent:g}"] = measured.percentiles[percent], found[name].percentiles[percent]
    pairs["makespan"] = run.makespan_s, result.duration_s - run.workload[0].arrival
    return pairs
