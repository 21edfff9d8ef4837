"""Runs of vLLM that LLMServingSim measured, request by request, and the same runs on the simulator.

Every run that lies in the folder is found, those that were put there later too. What a run says of its engine counts;
what it does not say is vLLM's default.

    measured__HARDWARE__MODEL__vllm_requests.jsonl.gz    when each request was queued, and got its first and last token
    measured__HARDWARE__MODEL__vllm_meta.json            the engine's settings (may be missing)
    measured__HARDWARE__MODEL__config.json               memory of the device, links of several (may be missing)
    profile/HARDWARE__*MODEL__tpN__attention.csv.gz      and its two siblings: times of the kernels
    WORKLOAD.blocks.jsonl.gz                             what was asked; without, what the requests say
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from chairlift.core.policy import Policy
from chairlift.metrics.latency import Summary, summarize
from chairlift.sim.calibrate.fit import fit
from chairlift.sim.calibrate.from_profile import steps_of_profile
from chairlift.sim.calibrate.measured import Measured
from chairlift.sim.cost import (
    DEVICES,
    MODELS,
    CostModel,
    HostCosts,
    Precision,
    SmoothCost,
    Transformer,
    num_kv_tokens,
)
from chairlift.sim.cost.scaled import scaled
from chairlift.sim.fleet import EngineSetup
from chairlift.sim.result import Result, latencies
from chairlift.sim.router import make_router
from chairlift.sim.run import simulate
from chairlift.sim.traces.tables import timed
from chairlift.sim.workload import Asked, Blocks, Part

PERCENTS = (50.0, 90.0, 95.0, 99.0)
MAX_HOST_S = 0.02
BLOCK_TOKENS = 16
GIB = 1 << 30


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
    """What a step takes by the profile of the kernels alone, and by the links between devices."""
    setup: EngineSetup
    num_replicas: int = 1
    """Engines beside each other, each with a part of the requests (data parallelism)."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What a run says of its engine, and of its device."""

    meta: Mapping[str, Any]
    config: Mapping[str, Any]

    def setting(self, name: str, default: Any) -> Any:
        """As the engine was started, or as it understood that."""
        resolved = self.meta.get("resolved_config") or {}
        places = [self.meta.get("engine_kwargs"), self.meta.get("kv_cache")]
        places += [resolved.get(key) for key in ("scheduler_config", "cache_config", "parallel_config")]
        return next((place[name] for place in places if place and place.get(name) is not None), default)

    @property
    def instance(self) -> Mapping[str, Any]:
        """The first engine of the first machine."""
        nodes = self.config.get("nodes") or [{}]
        instance: Mapping[str, Any] = (nodes[0].get("instances") or [{}])[0]
        return instance


def _unsaid(_: str) -> None:
    """Nobody asked why a run is left out."""


def vllm_runs(traces: Path, skip: Callable[[str], None] = _unsaid) -> list[VllmRun]:
    """All whose model is known and whose kernel profile is there; `skip` hears of the others."""
    folder = traces / "llmservingsim" if (traces / "llmservingsim").is_dir() else traces
    runs = []
    for path in sorted(folder.glob("measured__*requests.jsonl*")):
        name = path.name.partition(".jsonl")[0].removesuffix("requests").removesuffix("vllm_")
        name = name.removeprefix("measured__").removesuffix("__")
        stem = folder / f"measured__{name}__"
        said = _Said(_json(stem, "vllm_meta.json", "meta.json"), _json(stem, "config.json"))
        hardware, *rest = name.split("__")
        names = [said.meta.get("model"), said.instance.get("model_name"), *reversed(rest)]
        model = next((model for one in names if one and (model := _model(one))), None)
        size = said.setting("tensor_parallel_size", said.instance.get("tp_size") or 1)
        if model is None:
            skip(f"{name}: none of these models is known: {', '.join(str(one) for one in names if one)}")
        elif (profile := _profile(folder / "profile", hardware, model, size)) is None:
            skip(f"{name}: no profile of {model.name} on {size} x {hardware}")
        else:
            runs.append(_vllm_run(name, said, model, _rows(path), profile, size))
    return runs


def _json(stem: Path, *names: str) -> Mapping[str, Any]:
    for name in names:
        path = stem.with_name(stem.name + name)
        if path.is_file():
            found: Mapping[str, Any] = json.loads(path.read_text())
            return found
    return {}


def _rows(path: Path) -> list[Mapping[str, Any]]:
    """Requests that were served."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return [row for row in rows if row.get("first_token_ts") and row.get("last_token_ts")]


def _model(name: str) -> Transformer | None:
    """By the last part of a path, whatever it was tuned for."""
    name = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    for suffix in ("", "-instruct", "-hf", "-base"):
        if (found := MODELS.get(name.removesuffix(suffix))) is not None:
            return found
    return None


def _profile(folder: Path, hardware: str, model: Transformer, size: int) -> Path | None:
    """What its three tables have in common."""
    for path in sorted(folder.glob(f"{hardware}__*__tp{size}__attention.csv*")):
        prefix = path.name.partition("__attention.csv")[0]
        if any(_model(part) == model for part in prefix.split("__")[1:]):
            return path.with_name(prefix)
    return None


def _vllm_run(
    name: str, said: _Said, model: Transformer, rows: list[Mapping[str, Any]], profile: Path, size: int
) -> VllmRun:
    steps = steps_of_profile(profile, model.num_layers)
    kernels = fit(list(_with_sums(steps, said, name.partition("__")[0], model, size)) if size > 1 else steps)
    queued = [row["queued_ts"] for row in rows]
    setup = EngineSetup(
        cost=kernels,
        max_num_seqs=said.setting("max_num_seqs", 256),
        max_num_batched_tokens=said.setting("max_num_batched_tokens", 2048),
        num_blocks=_num_blocks(said, name.partition("__")[0], model, size),
        block_size=said.setting("block_size", BLOCK_TOKENS),
        enable_prefix_caching=said.setting("enable_prefix_caching", True),
        # The head of the queue is not passed, and nothing is kept free for those who run.
        policy=Policy(
            max_bypass=0,
            watermark=said.setting("watermark", 0.0),
            enable_chunked_prefill=said.setting("enable_chunked_prefill", True),
            long_prefill_token_threshold=said.setting("long_prefill_token_threshold", 0),
        ),
    )
    return VllmRun(
        name,
        _workload(profile.parents[1], said, rows),
        _summary(row["first_token_ts"] - row["queued_ts"] for row in rows),
        _summary(
            (row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1)
            for row in rows
            if row["output_toks"] > 1
        ),
        _summary(row["last_token_ts"] - row["queued_ts"] for row in rows),
        max(row["last_token_ts"] for row in rows) - min(queued),
        kernels,
        setup,
        said.setting("data_parallel_size", 1),
    )


def _with_sums(steps: list[Measured], said: _Said, hardware: str, model: Transformer, size: int) -> Iterator[Measured]:
    """Steps with the sums over all devices that end each layer twice, of which a profile of kernels knows nothing.

    Around a ring: 2 (n - 1) messages, and 2 (n - 1) / n of the state of each token over each link.
    """
    device = DEVICES.get(_device_name(hardware) or "")
    bandwidth = said.config.get("link_bw", 0) * 1e9 or (device.link_bandwidth / 2 if device else 16e9)
    latency_s = said.config["link_latency"] / 1e9 if "link_latency" in said.config else 20e-6
    token_s = 2 * (size - 1) / size * model.hidden_size * 2 / bandwidth
    for step in steps:
        sums_s = 2 * model.num_layers * (2 * (size - 1) * latency_s + step.shape.num_tokens * token_s)
        yield replace(step, step_s=step.step_s + sums_s)


def _device_name(hardware: str) -> str | None:
    """RTXPRO6000 is our rtx-pro-6000."""
    wanted = hardware.lower().replace("-", "")
    return next((name for name in DEVICES if name.replace("-", "") == wanted), None)


def _num_blocks(said: _Said, hardware: str, model: Transformer, size: int) -> int:
    """Cache blocks of one engine: as it said, or what its share of the memory holds beside the weights."""
    block_size = int(said.setting("block_size", BLOCK_TOKENS))
    num_replicas = int(said.setting("data_parallel_size", 1))
    for key, tokens in (("num_gpu_blocks_override", 1), ("num_gpu_blocks", 1), ("num_kv_tokens", block_size)):
        if found := said.setting(key, None):
            return int(found // tokens // num_replicas)
    kind = str(said.setting("kv_cache_dtype", "auto"))
    precision = Precision(kv_cache="fp8" if kind.startswith("fp8") else "bfloat16")
    memory = said.instance.get("npu_mem") or {}
    device = DEVICES.get(_device_name(hardware) or "")
    if "mem_size" not in memory:
        share = said.setting("gpu_memory_utilization", memory.get("mem_util", 0.9))
        if device is None:
            raise ValueError(f"nothing says how large the memory of {hardware} is")
        return num_kv_tokens(model, device, num_devices=size, precision=precision, memory_share=share) // block_size
    # A share that is said beside the size is one with which LLMServingSim comes to what the engine had.
    left = memory["mem_size"] * GIB * memory.get("mem_util", 0.9) - precision.weight_bytes(model.num_parameters) / size
    return int(left / (precision.kv_token_bytes(model) / min(size, model.num_kv_heads) * block_size))


def _workload(folder: Path, said: _Said, rows: list[Mapping[str, Any]]) -> list[Asked]:
    """What was asked: by the file that the run names, by one that asks the same, or by the requests themselves."""
    named = Path(said.meta.get("dataset_path") or "").stem
    paths = sorted(folder.glob("*.jsonl*"), key=lambda path: (path.name.partition(".jsonl")[0] != named, path.name))
    sizes = sorted((row["input_toks"], row["output_toks"]) for row in rows)
    for path in paths:
        if path.name.startswith("measured__"):
            continue
        asked = list(islice(timed(path), len(rows)))
        if sorted((one.prompt.num_tokens, one.num_output) for one in asked) == sizes:
            return asked
    clock = "arrival_time" if all(row.get("arrival_time") for row in rows) else "queued_ts"
    rows = sorted(rows, key=lambda row: row[clock])
    return [
        Asked(
            arrival=row[clock] - rows[0][clock],
            prompt=Blocks((Part(number, number, row["input_toks"]),), row["input_toks"]),
            num_output=row["output_toks"],
        )
        for number, row in enumerate(rows, 1)
    ]


def _summary(values: Iterable[float]) -> Summary:
    summary = summarize(list(values), PERCENTS)
    if summary is None:
        raise ValueError("a run in which nothing was served")
    return summary


# ---------------------------------------------------------------- the same on the simulator


def vllm_result(run: VllmRun, cost: CostModel) -> Result:
    """The same workload on simulated engines with these costs."""
    setup = replace(run.setup, cost=cost)
    fleet = [setup.replica(f"vllm-{number}") for number in range(run.num_replicas)]
    return simulate(run.workload, fleet, make_router("least-queued"))


@dataclass(frozen=True, slots=True)
class Fitted:
    """The one scalar that a run says about its cost, and the cost with it."""

    words: str
    cost: CostModel
    host_s: float = 0.0
    """What is added to each step."""
    factor: float = 1.0
    """What multiplies each step."""


def fitted(run: VllmRun) -> Fitted:
    """What the host adds to each step, so that requests take as long on the average as they were measured to.

    Where they take longer than that already, the host is hidden, and kernels are faster than those of the profile were
    (one step replayed as a whole, not started kernel by kernel): so many times.
    """
    if _missing_s(run, run.kernels) > 0.0:
        host_s = _root(lambda x: _missing_s(run, run.kernels.with_host(HostCosts(x))), 0.0, 0.002, MAX_HOST_S)
        words = f"{host_s * 1e3:.2f} ms added to each step"
        return Fitted(words, run.kernels.with_host(HostCosts(host_s)), host_s=host_s)
    factor = _root(lambda x: _missing_s(run, scaled(run.kernels, x)), 1.0, 0.95, 1.0)
    return Fitted(f"each step {factor:.3f} times as long", scaled(run.kernels, factor), factor=factor)


def _root(missing_s: Callable[[float], float], before: float, after: float, most: float) -> float:
    """Where nothing is missing: it falls nearly on a line."""
    missing_before = missing_s(before)
    for _ in range(3):
        missing = missing_s(after)
        if abs(missing - missing_before) < 1e-9:
            break
        root = after + missing * (after - before) / (missing_before - missing)
        before, missing_before, after = after, missing, min(max(root, most / 1000.0), most)
    return after


def _missing_s(run: VllmRun, cost: CostModel) -> float:
    """By how much requests take longer than simulated, on the average."""
    return run.e2el.mean - latencies(vllm_result(run, cost), PERCENTS)["e2el"].mean


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
