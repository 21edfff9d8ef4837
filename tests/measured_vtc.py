"""Runs of S-LoRA that the artifact of VTC measured, request by request, and the same runs on the simulator.

Every run that lies in the folder is found, those that were put there later too. What a run says of its server counts;
what it does not say is as the artifact starts that.

Source: the artifact of Sheng et al. 2024, arXiv:2401.00588, and the server in it.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chairlift.core.policy import OrderName, Policy
from chairlift.sim.calibrate.fit import fit
from chairlift.sim.cost import CostModel, HostCosts, SmoothCost, device_named, smooth_roofline, transformer_named
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.result import Result
from chairlift.sim.router import RoundRobin
from chairlift.sim.rules.peak import PeakTokens
from chairlift.sim.run import simulate
from chairlift.sim.workload import Asked, Blocks, Part
from measured_runs import vtc_steps

POOL_TOKENS = 10_000
LONGEST_TOKENS = 3072
"""Longest request that its server takes: so many prompt tokens, or a sixth of the cache, join at once."""
MAX_RUNNING = 1000
DECODES_BETWEEN = 10
"""Decode steps between two looks at its queue."""
ADAPTER_TOKENS = 32
"""What its cache keeps for a client: four tokens for each of the eight ranks of an adapter, if it is used or not."""
VTC_HOST_S = 0.0404
"""The one figure that is fitted: what its server takes for a step however little there is in it, of which its profile
of kernels knows nothing. Between the two runs with an overload of two tenants, in fair order and in that of arrival:
the one says less and the other more."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request as it was served; times in seconds from the start of the run."""

    client: str
    num_prompt: int
    num_output: int
    arrival: float
    first_token: float
    finished: float


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What of ours is one of its schedulers. `charges_ahead`: those that are told or guess how long answers get."""

    order: OrderName
    charges_ahead: bool = False


SCHEDULINGS: Mapping[str, Scheduling] = {
    "FCFS": Scheduling("fcfs"),
    "LShare": Scheduling("fcfs"),  # what it refuses is not served here either
    "VTC": Scheduling("fair"),
    "WVTC": Scheduling("fair"),
    "VTC_oracle": Scheduling("fair", charges_ahead=True),
    "VTC_pred_50": Scheduling("fair", charges_ahead=True),
    "VTC_predict": Scheduling("fair", charges_ahead=True),
}
"""By the name of the folder in the artifact. Others order as none of ours does: LCF remembers who was away, and the
`_profile` ones count service by another formula."""


@dataclass(frozen=True, slots=True)
class VtcRun:
    """One file of answers. `duration_s` is for how long requests came."""

    name: str
    scheduling: Scheduling
    duration_s: float
    answers: list[Answered]
    weights: Mapping[str, float] = field(default_factory=dict)
    pool_tokens: int = POOL_TOKENS
    step_tokens: int = LONGEST_TOKENS
    max_running: int = MAX_RUNNING


def _unsaid(_: str) -> None:
    """Nobody asked why a run is left out."""


def vtc_runs(traces: Path, skip: Callable[[str], None] = _unsaid) -> list[VtcRun]:
    """The runs whose scheduler is one of `SCHEDULINGS`; `skip` hears of the others."""
    folder = traces / "vtc" if (traces / "vtc").is_dir() else traces
    runs = []
    for path, entry in sorted(_entries(folder).items()):
        name = path.name.partition(".")[0]
        scheduler = str(entry.get("scheduler") or name.partition("__")[0])
        scheduling = SCHEDULINGS.get(scheduler) or SCHEDULINGS.get(scheduler.partition("_")[0])
        if not path.is_file():
            skip(f"{path.name} is not there")
        elif scheduling is None or scheduler.endswith("_profile"):
            skip(f"{path.name}: no order of ours is that of {scheduler}")
        else:
            runs.append(_vtc_run(name, scheduler, scheduling, list(_answers(path)), entry))
    return runs


def _entries(folder: Path) -> dict[Path, Mapping[str, Any]]:
    """What the manifest says of each file, and nothing of those that it leaves out."""
    found: dict[Path, Mapping[str, Any]] = {path: {} for path in folder.glob("*__*.csv*")}
    manifest = folder / "manifest.json"
    if manifest.is_file():
        found |= {folder / entry["file"]: entry for entry in json.loads(manifest.read_text())}
    return found


def _vtc_run(
    name: str, scheduler: str, scheduling: Scheduling, answers: list[Answered], entry: Mapping[str, Any]
) -> VtcRun:
    said = {**(entry.get("config") or {}), **entry}
    clients = sorted({one.client for one in answers}, key=_number)
    weights = _weights(said.get("fair_weights") or said.get("weights"), clients)
    if scheduler == "WVTC" and not weights:
        # Its command gives them, and neither its results nor their names do.
        weights = {client: float(number) for number, client in enumerate(clients, 1)}
    pool = int(said.get("max_total_token_num") or said.get("num_token") or POOL_TOKENS)
    return VtcRun(
        name,
        scheduling,
        float(said.get("duration") or math.ceil(max(one.arrival for one in answers))),
        answers,
        weights,
        pool,
        int(said.get("batch_max_tokens") or max(pool // 6, LONGEST_TOKENS)),
        int(said.get("running_max_req_size") or MAX_RUNNING),
    )


def _weights(said: Any, clients: list[str]) -> dict[str, float]:
    """By client, or one after the other in the order of their numbers; 1 for those that are left out."""
    if isinstance(said, Mapping):
        return {str(client): float(weight) for client, weight in said.items()}
    return {client: float(weight) for client, weight in zip(clients, said or (), strict=False)}


def _number(client: str) -> tuple[int, str]:
    last = client.rpartition("-")[2]
    return (int(last), client) if last.isdigit() else (1 << 30, client)


def _answers(path: Path) -> Iterator[Answered]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
            arrival, first = float(row["req_time"]), float(row["first_token_latency"])
            if first >= 0.0:
                finished = arrival + float(row["request_latency"])
                sizes = int(row["prompt_len"]), int(row["output_len"])
                client = row.get("client") or row.get("adapter_dir") or ""
                yield Answered(client, *sizes, arrival, arrival + first, finished)


# ---------------------------------------------------------------- the same on the simulator


def vtc_cost(traces: Path, host: HostCosts | None = None) -> SmoothCost:
    """By the server's profile of itself, with a host of its own if one is given."""
    prior = smooth_roofline(transformer_named("llama-2-7b"), device_named("a10g"))
    cost = fit(vtc_steps(traces), prior=prior.coefficients)
    return cost if host is None else cost.with_host(host)


def vtc_setup(cost: CostModel, run: VtcRun, *, reserves_max: bool = False) -> EngineSetup:
    """Its engine: whole prompts in steps of their own, first in line first, joins by the peak of tokens.

    With `reserves_max`, what of ours comes nearest to that without a rule: the cache for the longest answer is kept
    from the beginning, and output charged ahead.
    """
    size = 16 if reserves_max else 1
    scheduling = run.scheduling
    return EngineSetup(
        cost=cost,
        max_num_seqs=run.max_running,
        max_num_batched_tokens=max(run.step_tokens, run.max_running),
        # The rule says what fits; blocks must not say otherwise.
        num_blocks=run.pool_tokens // size * (1 if reserves_max else 2),
        block_size=size,
        enable_prefix_caching=False,
        policy=Policy(
            scheduling_policy=scheduling.order,
            weights=run.weights,
            charges_ahead=reserves_max or scheduling.charges_ahead,
            prefill_first=True,
            enable_chunked_prefill=False,
            kv_reservation="max" if reserves_max else "on-demand",
            watermark=0.0,
            max_bypass=0,
        ),
        join_rule=None if reserves_max else PeakTokens(run.pool_tokens, DECODES_BETWEEN, ADAPTER_TOKENS),
    )


def vtc_result(run: VtcRun, setup: EngineSetup, until: float = math.inf) -> Result:
    """The same requests on a simulated engine."""
    return simulate(asked_of(run.answers), [setup.replica("s-lora")], RoundRobin(), until=until)


def asked_of(answers: list[Answered]) -> list[Asked]:
    """The same requests, to be served again: no two of them share anything."""
    return [
        Asked(
            arrival=one.arrival,
            prompt=Blocks((Part(number, number, one.num_prompt),), one.num_prompt),
            num_output=one.num_output,
            principal=one.client,
        )
        for number, one in enumerate(sorted(answers, key=lambda one: one.arrival), 1)
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


# ---------------------------------------------------------------- figures


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
