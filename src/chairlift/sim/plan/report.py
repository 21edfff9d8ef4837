"""A plan as plain data, and as lines for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.sim.plan.flags import serve_flags
from chairlift.sim.plan.search import Found, Plan
from chairlift.sim.plan.setting import Fleet, Setting
from chairlift.sim.plan.trial import Stage, Trial

LEAST_RUN = 3.0
"""A run says little about a rate unless arrivals last so many times as long as requests do."""


@dataclass(frozen=True, slots=True)
class Again:
    """How the workload came, so that one can say how to have a run of the plan once more."""

    speed_up: float = 1.0
    duration_s: float | None = None
    """When arrivals were cut, if they were."""

    def flags(self, factor: float) -> str:
        """For a run so many times as fast."""
        flags = f"--speed-up {factor * self.speed_up!r}"
        return flags if self.duration_s is None else f"{flags} --duration {self.duration_s / factor!r}"


def plan_figures(
    plan: Plan, stage: Stage, *, band: float, tolerance: float, penalty: float, again: Again | None = None
) -> dict[str, Any]:
    """The whole plan. Rates are requests per second, latencies milliseconds; None where there is no such value."""
    offered, objectives = stage.offered, stage.objectives
    sample = offered.sample
    chosen = plan.chosen
    values: dict[str, Any] = {
        "num_requests": offered.num_requests,
        "mean_input_tokens": sum(asked.prompt.num_tokens for asked in sample) / len(sample),
        "mean_output_tokens": sum(asked.num_output for asked in sample) / len(sample),
        "objectives": {
            "percent": objectives.percent,
            "ttft_ms": _ms(objectives.ttft_s),
            "itl_ms": _ms(objectives.itl_s),
            "e2e_ms": _ms(objectives.e2e_s),
        },
        "num_settings": plan.num_settings,
        "num_runs": plan.num_trials,
        "tolerance": tolerance,
        "frontier": [_found_figures(found, stage) for found in plan.found],
        "chosen": None,
        "asked": None,
        "alone": None if plan.alone is None else {**_trial_figures(plan.alone), "missed": list(plan.alone.missed)},
    }
    if chosen is not None:
        values["chosen"] = {
            **_found_figures(chosen, stage),
            "band": {"step_time": band, "slower_rate": plan.band[0], "faster_rate": plan.band[1]},
            "serve_flags": " ".join(serve_flags(chosen.setting.setup(stage.base))),
            "simulate_flags": " ".join(_simulate_flags(chosen, stage, again or Again())),
        }
    if plan.asked is not None:
        values["asked"] = {
            **_trial_figures(plan.asked.trial),
            "holds": plan.asked.trial.holds,
            "missed": list(plan.asked.trial.missed),
            "margin": plan.asked.margin,
            "speed_up": offered.factor(plan.asked.trial.rate),
        }
    if plan.goodput is not None:
        values["goodput"] = {
            "raw": plan.goodput.raw,
            "penalised": plan.goodput.penalised,
            "penalty": penalty,
            "good_share": plan.goodput.good_share,
        }
    return values


def _found_figures(found: Found, stage: Stage) -> dict[str, Any]:
    return {
        **_setting_figures(found.setting),
        **_trial_figures(found.trial),
        "limited_by": list(found.limited_by),
        "speed_up": stage.offered.factor(found.rate),
        "arrival_s": (stage.offered.num_requests - 1) / found.rate,
    }


def _setting_figures(setting: Setting) -> dict[str, Any]:
    fleet = setting.fleet
    return {
        "num_engines": fleet.num_engines,
        "replicas": None if fleet.split is not None else fleet.num_replicas,
        "split": None if fleet.split is None else list(fleet.split),
        "router": fleet.router if _has_router(fleet) else None,
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "scheduling_policy": setting.scheduling_policy,
    }


def _simulate_flags(found: Found, stage: Stage, again: Again) -> list[str]:
    """What `chairlift simulate` needs, besides workload and device, to have this run once more."""
    fleet = found.setting.fleet
    flags = [again.flags(stage.offered.factor(found.rate)), *serve_flags(found.setting.setup(stage.base))]
    if fleet.split is not None:
        flags.append("--split {}:{}".format(*fleet.split))
    elif fleet.num_replicas > 1:
        flags.append(f"--replicas {fleet.num_replicas}")
    return [*flags, f"--router {fleet.router}"] if _has_router(fleet) else flags


def _trial_figures(trial: Trial) -> dict[str, Any]:
    values: dict[str, Any] = {"rate": trial.rate, "output_tokens_per_s": trial.output_tokens_per_s}
    if trial.latencies is not None:
        values["ttft_ms"] = _ms(trial.latencies.ttft_s)
        values["itl_ms"] = _ms(trial.latencies.itl_s)
        values["e2e_ms"] = _ms(trial.latencies.e2e_s)
        values["dropped_share"] = trial.latencies.dropped_share
    if trial.backlog is not None:
        values["verdict"] = trial.backlog.verdict.value
        values["queue_growth"] = trial.backlog.growth
        values["longest_queue"] = trial.backlog.longest
    if trial.num_lost_tokens:
        values["lost_kv_tokens"] = trial.num_lost_tokens
    return values


def _ms(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds * 1e3


def _has_router(fleet: Fleet) -> bool:
    return max(fleet.split or (fleet.num_replicas,)) > 1


# ---------------------------------------------------------------- for people


def to_lines(figures: Mapping[str, Any]) -> str:
    """What `plan_figures` gave."""
    objectives = figures["objectives"]
    wanted = [
        f"{name.upper()} {objectives[f'{name}_ms']:g} ms"
        for name in ("ttft", "itl", "e2e")
        if objectives[f"{name}_ms"] is not None
    ]
    percent = f"p{objectives['percent']:g}"
    head = [
        (
            "workload",
            f"{figures['num_requests']} requests, on average {figures['mean_input_tokens']:.0f} tokens in and "
            f"{figures['mean_output_tokens']:.0f} out",
        ),
        *([("engine", figures["assumed"])] if "assumed" in figures else []),
        ("objectives", f"{percent} of {', '.join(wanted)}" if wanted else "none but to keep up"),
        ("searched", f"{figures['num_settings']} settings in {figures['num_runs']} runs"),
    ]
    sections = ["\n".join(f"{name:<12}{text}" for name, text in head)]
    if figures["frontier"]:
        sections.append(_frontier(figures["frontier"], percent))
    chosen = figures["chosen"]
    if chosen is None:
        alone = figures["alone"]
        sections.append(
            f"No setting holds the objectives at any rate ({', '.join(alone['missed'])}). However slowly they come, "
            f"requests get, {percent} in ms: {_latencies(alone)}"
        )
        return "\n\n".join(sections)
    sections.append(_chosen(chosen, figures))
    if figures["asked"] is not None:
        sections.append(_asked(figures["asked"], percent))
    return "\n\n".join(sections)


def _frontier(rows: Sequence[Mapping[str, Any]], percent: str) -> str:
    table = [
        [
            "rate/s",
            "engines",
            "router",
            "order",
            "seqs",
            "tokens",
            f"TTFT {percent}",
            f"ITL {percent}",
            f"E2E {percent}",
            "out/s",
            "queue",
            "limit",
        ]
    ]
    for row in rows:
        engines = str(row["replicas"]) if row["split"] is None else "{} + {}".format(*row["split"])
        table.append(
            [
                f"{row['rate']:.2f}" if row["limited_by"] else "any",
                engines,
                row["router"] or "-",
                row["scheduling_policy"],
                str(row["max_num_seqs"]),
                str(row["max_num_batched_tokens"]),
                *(_shown(row[f"{name}_ms"]) for name in ("ttft", "itl", "e2e")),
                f"{row['output_tokens_per_s']:.0f}",
                row["verdict"],
                " ".join(row["limited_by"]) or "-",
            ]
        )
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def _chosen(chosen: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    band, goodput = chosen["band"], figures["goodput"]
    edges = " .. ".join(
        "none" if rate is None else f"{rate:.2f}" for rate in (band["slower_rate"], band["faster_rate"])
    )
    share = 100 * band["step_time"]
    again = (
        f"see it      chairlift simulate {chosen['simulate_flags']}, and the flags of this command that say what is "
        "asked and of which device"
    )
    if not chosen["limited_by"]:
        return (
            f"capacity    not found: {figures['num_requests']} requests are too few to pile up or to be late, however "
            f"fast they come; ask for more of them (--num-prompts)\n{again}"
        )
    lines = [
        f"capacity    {chosen['rate']:.2f} requests/s; {edges} if steps are {share:g} % longer .. shorter",
        f"goodput     {goodput['raw']:.2f} requests/s within the objectives, {goodput['penalised']:.2f} if each "
        f"late or dropped one takes {goodput['penalty']:g} off",
        again,
    ]
    if chosen["e2e_ms"] is not None and chosen["arrival_s"] * 1e3 < LEAST_RUN * chosen["e2e_ms"]:
        lines.append(
            f"too short   requests arrive for {chosen['arrival_s']:.1f} s, less than {LEAST_RUN:g} times as long as "
            "the longest take: ask for more of them (--num-prompts)"
        )
    if chosen["split"] is not None:
        lines.append("engines     {} that compute prompts, {} that decode".format(*chosen["split"]))
    elif chosen["num_engines"] > 1:
        lines.append(f"engines     {chosen['num_engines']}")
    if chosen["router"] is not None:
        lines.append(f"router      {chosen['router']}")
    lines.append(f"each        chairlift serve {chosen['serve_flags']}")
    return "\n".join(lines)


def _asked(asked: Mapping[str, Any], percent: str) -> str:
    answer = "holds" if asked["holds"] else f"does not hold ({', '.join(asked['missed'])})"
    return (
        f"{asked['rate']:g} requests/s: {asked['verdict']}, {answer}, margin {100 * asked['margin']:+.1f} %; "
        f"{percent} in ms: {_latencies(asked)}"
    )


def _latencies(trial: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.upper()} {_shown(trial[f'{name}_ms'])}" for name in ("ttft", "itl", "e2e"))


def _shown(milliseconds: float | None) -> str:
    return "never" if milliseconds is None else f"{milliseconds:.1f}"
