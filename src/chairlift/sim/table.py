"""The figures of a run as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end to end",
    "queue": "waiting to join",
}


def to_table(figures: Mapping[str, Any], percents: Sequence[float]) -> str:
    """What `sim.result.figures` gave, in lines."""
    assumed = [("engine", line) for line in figures.get("assumed", ())]
    rate, endless = figures["prefix_hit_rate"], figures.get("endless_prefix_hit_rate")
    bound = "" if endless is None else f", {100 * endless:.1f} % by an endless cache"
    head = [
        *assumed,
        ("requests", f"{figures['completed']} completed of {figures['num_requests']}{_odd(figures)}"),
        ("simulated", f"{figures['duration']:.2f} s, {figures['request_throughput']:.2f} requests/s"),
        (
            "tokens",
            f"{figures['total_input_tokens']} in, {figures['total_output_tokens']} out, "
            f"{figures['output_throughput']:.1f} out/s",
        ),
        ("prefix cache", f"{100 * rate:.1f} % of {figures['prefix_queried_tokens']} prompt tokens found{bound}"),
        ("preemptions", str(figures["num_preemptions"])),
    ]
    if figures["refused"]:
        head.append(("refused", f"{figures['refused']}, the first because {figures['first_refusal']}"))
    if "goodput" in figures:
        head.append(("goodput", f"{figures['goodput']:.2f} requests/s, {100 * figures['good_share']:.1f} % of all"))
    sections = ["\n".join(f"{name:<14}{text}" for name, text in head), _latencies(figures, percents)]
    if len(figures["replicas"]) > 1:
        sections.append(_replicas(figures["replicas"]))
    else:
        sections.append(_engine(figures["replicas"][0]))
    if figures["tenants"]:
        sections.append(_tenants(figures["tenants"], max(percents)))
    return "\n\n".join(sections)


def _odd(figures: Mapping[str, Any]) -> str:
    """Requests that did not come to a good end."""
    odd = [f"{figures[name]} {name}" for name in ("refused", "unfinished") if figures[name]]
    if figures["cut"]:
        odd.append(f"{figures['cut']} cut at the longest sequence or by the cache")
    for reason, number in figures["finish_reasons"].items():
        if reason not in ("stop", "length"):
            odd.append(f"{number} answers ended by {reason}")
    return f" ({', '.join(odd)})" if odd else ""


def _latencies(figures: Mapping[str, Any], percents: Sequence[float]) -> str:
    rows = [["ms", "mean", *(f"p{percent:g}" for percent in percents)]]
    for name, title in TITLES.items():
        if f"mean_{name}_ms" in figures:
            values = [figures[f"mean_{name}_ms"], *(figures[f"p{percent:g}_{name}_ms"] for percent in percents)]
            rows.append([title, *(f"{value:.2f}" for value in values)])
    return aligned(rows)


def _engine(replica: Mapping[str, Any]) -> str:
    return (
        f"{replica['num_steps']} steps, busy {100 * replica['utilization']:.0f} % of the time; "
        f"{100 * replica['slot_use']:.0f} % of slots used in them, {replica['max_running']} at most; "
        f"{replica['max_queued']} requests at most waited or ran"
    )


def _replicas(replicas: Iterable[Mapping[str, Any]]) -> str:
    rows = [["engine", "steps", "busy", "slots", "running", "queued", "prefix hits", "preempted"]]
    for replica in replicas:
        queried = replica["prefix_queried_tokens"]
        rows.append(
            [
                replica["name"],
                str(replica["num_steps"]),
                f"{100 * replica['utilization']:.0f}%",
                f"{100 * replica['slot_use']:.0f}%",
                str(replica["max_running"]),
                str(replica["max_queued"]),
                f"{100 * replica['prefix_hit_tokens'] / queried if queried else 0:.1f}%",
                str(replica["num_preemptions"]),
            ]
        )
    return aligned(rows)


def _tenants(tenants: Sequence[Mapping[str, Any]], most: float) -> str:
    """With the median of latencies, and the highest of the percentiles that were asked for."""
    heads = [f"{name} p{percent:g} ms" for name in ("TTFT", "E2E") for percent in (50, most)]
    rows = [["tenant", "completed", "in", "out", "out/s", *heads]]
    for tenant in tenants:
        name = "/".join(part for part in (tenant["principal"], tenant["tenant"]) if part) or "-"
        places = ("median", f"p{most:g}")
        latencies = [tenant.get(f"{place}_{latency}_ms") for latency in ("ttft", "e2el") for place in places]
        rows.append(
            [
                name,
                f"{tenant['completed']} of {tenant['num_requests']}",
                str(tenant["total_input_tokens"]),
                str(tenant["total_output_tokens"]),
                f"{tenant['output_throughput']:.1f}",
                *("-" if value is None else f"{value:.1f}" for value in latencies),
            ]
        )
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
