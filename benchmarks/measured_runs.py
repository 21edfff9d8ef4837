#!/usr/bin/env python3
"""Runs of other engines that others measured, beside the same runs on the simulator.

    .venv/bin/python benchmarks/measured_runs.py [--traces DIR] [vtc] [vllm]

The scheduler is the server's; what those engines do otherwise are options of the run (`tests/measured_vtc.py` and
`tests/measured_vllm.py`). Every run of both kinds that lies in the folder is compared, `../shared/traces` if none is
named; of those that cannot be it is said why.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from chairlift.sim.cost import HostCosts
from chairlift.sim.fleet import EngineSetup
from measured_runs import shared_traces
from measured_vllm import fitted, off, vllm_result, vllm_runs
from measured_vtc import (
    VTC_HOST_S,
    Answered,
    VtcRun,
    answered,
    largest_gap,
    served_by_then,
    tokens_per_s,
    vtc_cost,
    vtc_result,
    vtc_runs,
    vtc_setup,
)

KINDS = ("vtc", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: both)")
    parser.add_argument("--traces", type=Path, default=shared_traces(), help="folder with vtc and llmservingsim in it")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    if arguments.traces is None:
        print("../shared/traces is not there", file=sys.stderr)
        return 0
    kinds = arguments.kinds or KINDS
    if "vtc" in kinds:
        overloads(arguments.traces)
    if "vllm" in kinds:
        servers(arguments.traces)
    return 0


def overloads(traces: Path) -> None:
    kernels = vtc_cost(traces)
    served = vtc_cost(traces, HostCosts(VTC_HOST_S, overlaps=True))
    print("S-LoRA, Llama-2-7B on an A10G: service of each client while requests came, by its own profile of steps")
    print("with the rule: joins by the peak of tokens, output charged as it comes")
    print(f"host: and {VTC_HOST_S * 1e3:.1f} ms a step at least")
    for run in vtc_runs(traces, leave_out):
        compare(
            run,
            {
                "kv-reservation max": vtc_setup(kernels, run, reserves_max=True),
                "with the rule": vtc_setup(kernels, run),
                "with the rule, host": vtc_setup(served, run),
            },
        )


def leave_out(why: str) -> None:
    print(f"\nleft out: {why}")


def compare(run: VtcRun, setups: dict[str, EngineSetup]) -> None:
    until = run.duration_s
    measured = served_by_then(run.answers, until)
    rate, waited = tokens_per_s(run.answers), mean_wait(run.answers)
    clients = sorted(measured)
    shown = clients if len(clients) <= 4 else []
    weights = "".join(f" {client}:{weight:g}" for client, weight in sorted(run.weights.items()))
    order = run.scheduling.order + (f", weights{weights}" if weights else "")
    print(f"\n{run.name}: {len(run.answers)} requests of {len(clients)} clients in {until:.0f} s, {order}")
    heading = "".join(f"{'client ' + client:>18}" for client in shown)
    print(f"{'':<20}{heading}{'worst':>8}{'tokens/s':>16}{'mean TTFT s':>16}{'largest gap':>12}{'wall s':>8}")
    cells = "".join(f"{measured[client]:>18.0f}" for client in shown)
    print(f"{'measured':<20}{cells}{'':>8}{rate:>16.1f}{waited:>16.1f}{largest_gap(run.answers, until):>12.0f}")
    for name, setup in setups.items():
        begun = time.perf_counter()
        result = vtc_result(run, setup)
        wall_s = time.perf_counter() - begun
        answers = answered(result)
        service = served_by_then(answers, until)
        shares = {client: service.get(client, 0.0) / measured[client] - 1.0 for client in clients}
        cells = "".join(f"{service.get(client, 0.0):>10.0f}{shares[client]:>+8.1%}" for client in shown)
        other = tokens_per_s(answers), mean_wait(answers)
        print(
            f"{name:<20}{cells}{max(shares.values(), key=abs):>+8.1%}"
            f"{other[0]:>8.1f}{other[0] / rate - 1.0:>+8.1%}{other[1]:>8.1f}{other[1] / waited - 1.0:>+8.1%}"
            f"{largest_gap(answers, until):>12.0f}{wall_s:>8.1f}"
        )


def mean_wait(answers: list[Answered]) -> float:
    """Seconds to the first token."""
    return sum(one.first_token - one.arrival for one in answers) / len(answers)


def servers(traces: Path) -> None:
    for run in vllm_runs(traces, leave_out):
        scalar = fitted(run)
        results = [vllm_result(run, cost) for cost in (run.kernels, scalar.cost)]
        stats = [replica.scheduler.stats() for replica in results[1].replicas]
        print(f"\nvLLM, {run.name}: {len(run.workload)} requests, cost of steps by the profile of its kernels")
        print(f"fitted: {scalar.words}, by the mean E2E of this run")
        print(
            f"{run.num_replicas} x {run.setup.num_blocks} blocks of {run.setup.block_size}; "
            f"preemptions {sum(one.num_preemptions for one in stats)}, "
            f"prefix cache {sum(one.prefix_hits for one in stats)} of {sum(one.prefix_queries for one in stats)} tokens"
        )
        print(f"{'seconds':<12}{'measured':>10}{'kernels alone':>20}{'fitted':>20}")
        pairs = [off(run, result) for result in results]
        for name, (measured, alone) in pairs[0].items():
            found = pairs[1][name][1]
            print(
                f"{name:<12}{measured:>10.4f}{alone:>12.4f}{alone / measured - 1.0:>+8.1%}"
                f"{found:>12.4f}{found / measured - 1.0:>+8.1%}"
            )


if __name__ == "__main__":
    sys.exit(main())
