"""What a run came to: every request, every replica, and the figures people ask for, as `metrics` defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.types import Finish, FinishReason
from chairlift.metrics.counted import Counted
from chairlift.metrics.latency import Summary, e2e, in_ms, summarize, tpot, ttft
from chairlift.sim.replica import Replica
from chairlift.sim.served import Served, token_times

PERCENTS = (50.0, 90.0, 95.0, 99.0)
LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
"""Names of latencies, as benchmarks write them."""


@dataclass(slots=True)
class Result:
    """A run up to `ended_at`, in seconds from its start: where the clock stopped, perhaps at an idle alarm."""

    served: list[Served]
    replicas: Sequence[Replica]
    ended_at: float
    prefilling: Sequence[Replica] | None = None
    """Those that compute prompts, None if all do: a hit in the prefix cache of another saves nothing."""

    @property
    def completed(self) -> list[Served]:
        """Requests whose every answer came to its end; times of others say nothing."""
        return [served for served in self.served if is_completed(served)]

    @property
    def duration_s(self) -> float:
        """From the start to the last end of an answer or of a step: the time that all figures are about."""
        ends = [finish.finished for served in self.served for finish in served.finishes]
        ends += [replica.tally.last_end for replica in self.replicas]
        return max(ends, default=0.0) or self.ended_at

    @property
    def num_output_tokens(self) -> int:
        """Of completed requests: nobody has use for the others."""
        return sum(served.num_output_tokens for served in self.completed)

    @property
    def inter_token_latencies(self) -> Counted:
        """All gaps between tokens of an answer, of all answers, in seconds."""
        return Counted(pair for r in self.replicas for pair in zip(r.ledger.gaps, r.ledger.gap_counts, strict=True))

    def token_times(self, served: Served, choice: int = 0) -> list[float]:
        """When the tokens of an answer that is over came, ascending, in seconds."""
        return token_times(served.stretches.get(choice, []), self.replicas[served.replica].ledger.decode_ends)


def is_completed(served: Served) -> bool:
    return (
        served.error is None
        and served.is_over
        and all(finish.reason in (FinishReason.STOP, FinishReason.LENGTH) for finish in served.finishes)
    )


def is_cut(served: Served) -> bool:
    """Whether an answer is shorter than was asked: the longest sequence, or the cache, left no room for more."""
    return any(finish.num_output_tokens < served.asked.num_output for finish in served.finishes)


def ttft_s(served: Served) -> float | None:
    return None if served.first_token is None else ttft(served.asked.arrival, served.first_token)


def e2e_s(served: Served) -> float | None:
    return None if (finished := served.finished) is None else e2e(served.asked.arrival, finished)


def queue_s(served: Served) -> float | None:
    """Seconds from arriving to first joining a step."""
    times = [finish.first_scheduled for finish in served.finishes if finish.first_scheduled is not None]
    return min(times) - served.asked.arrival if times else None


def tpots_s(served: Served) -> list[float]:
    """Of each answer with two tokens or more."""
    values = (_tpot_s(finish) for finish in served.finishes)
    return [value for value in values if value is not None]


def _tpot_s(finish: Finish) -> float | None:
    return None if finish.first_token is None else tpot(finish.first_token, finish.finished, finish.num_output_tokens)


def latencies(result: Result, percents: Sequence[float] = PERCENTS) -> dict[str, Summary]:
    """Summaries in seconds, by the names of `LATENCIES`, of completed requests; ITL of all answers."""
    completed = result.completed
    values: dict[str, list[float]] = {
        "ttft": [value for served in completed if (value := ttft_s(served)) is not None],
        "tpot": [value for served in completed for value in tpots_s(served)],
        "e2el": [value for served in completed if (value := e2e_s(served)) is not None],
        "queue": [value for served in completed if (value := queue_s(served)) is not None],
    }
    found: dict[str, Summary] = {}
    for name in LATENCIES:
        summary = result.inter_token_latencies.summary(percents) if name == "itl" else summarize(values[name], percents)
        if summary is not None:
            found[name] = summary
    return found


def is_good(served: Served, limits_ms: Mapping[str, float]) -> bool:
    """Whether a request was completed and kept every limit, by the names `ttft`, `tpot` and `e2el`.

    An answer of a single token has no TPOT, and so keeps any.
    """
    seconds = {"ttft": ttft_s(served), "tpot": max(tpots_s(served), default=0.0), "e2el": e2e_s(served)}
    return is_completed(served) and all(
        (value := seconds[name]) is not None and value * 1e3 <= limit for name, limit in limits_ms.items()
    )


def figures(
    result: Result, percents: Sequence[float] = PERCENTS, limits_ms: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """A run as plain data, with the names that `vllm bench serve --save-result` uses where it has them.

    Latencies are in milliseconds. With limits there is a goodput: good requests a second, and their share of all.
    """
    completed, duration_s, num_output = result.completed, result.duration_s, result.num_output_tokens
    num_input = sum(served.asked.prompt.num_tokens for served in completed)

    def per_s(count: float) -> float:
        return count / duration_s if duration_s > 0 else 0.0

    reasons: dict[str, int] = {}
    for served in result.served:
        for finish in served.finishes:
            reasons[finish.reason.value] = reasons.get(finish.reason.value, 0) + 1
    stats = [replica.scheduler.stats() for replica in result.replicas]
    looked = stats if result.prefilling is None else [replica.scheduler.stats() for replica in result.prefilling]
    queries, hits = sum(s.prefix_queries for s in looked), sum(s.prefix_hits for s in looked)
    values: dict[str, Any] = {
        "duration": duration_s,
        "num_requests": len(result.served),
        "completed": len(completed),
        "refused": sum(served.error is not None for served in result.served),
        "first_refusal": next((served.error for served in result.served if served.error is not None), None),
        "cut": sum(map(is_cut, completed)),
        "unfinished": sum(not served.is_over for served in result.served),
        "finish_reasons": dict(sorted(reasons.items())),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": per_s(len(completed)),
        "output_throughput": per_s(num_output),
        "total_token_throughput": per_s(num_input + num_output),
        "prefix_queried_tokens": queries,
        "prefix_hit_tokens": hits,
        "prefix_hit_rate": hits / queries if queries else 0.0,
        "num_preemptions": sum(s.num_preemptions for s in stats),
    }
    for name, summary in latencies(result, percents).items():
        values |= in_ms(name, summary)
    if limits_ms:
        num_good = sum(is_good(served, limits_ms) for served in result.served)
        values["goodput"] = per_s(num_good)
        values["good_share"] = num_good / len(result.served) if result.served else 0.0
    values["replicas"] = [_replica_figures(replica, duration_s) for replica in result.replicas]
    values["tenants"] = _tenant_figures(result.served, duration_s, percents)
    return values


def _replica_figures(replica: Replica, duration_s: float) -> dict[str, Any]:
    tally, stats = replica.tally, replica.scheduler.stats()
    max_num_seqs = replica.scheduler.started_with.max_num_seqs
    return {
        "name": replica.name,
        "num_steps": tally.num_steps,
        "busy_s": tally.busy_s,
        "utilization": tally.busy_s / duration_s if duration_s > 0 else 0.0,
        "slot_use": tally.num_rows / (tally.num_steps * max_num_seqs) if tally.num_steps else 0.0,
        "num_filler_rows": tally.num_filler_rows,
        "num_chunk_tokens": tally.num_chunk_tokens,
        "max_running": tally.most_running,
        "max_queued": tally.most_queued,
        "num_preemptions": stats.num_preemptions,
        "prefix_queried_tokens": stats.prefix_queries,
        "prefix_hit_tokens": stats.prefix_hits,
    }


def _tenant_figures(all_served: list[Served], duration_s: float, percents: Sequence[float]) -> list[dict[str, Any]]:
    """By who asked, if several did."""
    groups: dict[tuple[str, str], list[Served]] = {}
    for served in all_served:
        groups.setdefault((served.asked.principal, served.asked.tenant), []).append(served)
    if len(groups) < 2:
        return []
    rows = []
    for (principal, tenant), asked in sorted(groups.items()):
        group = [served for served in asked if is_completed(served)]
        tokens = sum(served.num_output_tokens for served in group)
        row: dict[str, Any] = {
            "principal": principal,
            "tenant": tenant,
            "num_requests": len(asked),
            "completed": len(group),
            "total_input_tokens": sum(served.asked.prompt.num_tokens for served in group),
            "total_output_tokens": tokens,
            "output_throughput": tokens / duration_s if duration_s > 0 else 0.0,
        }
        for name, measure in (("ttft", ttft_s), ("e2el", e2e_s)):
            summary = summarize([v for served in group if (v := measure(served)) is not None], percents)
            if summary is not None:
                row[f"mean_{name}_ms"] = summary.mean * 1e3
                row[f"median_{name}_ms"] = summary.median * 1e3
                for percent, value in summary.percentiles.items():
                    row[f"p{percent:g}_{name}_ms"] = value * 1e3
        rows.append(row)
    return rows


def request_figures(result: Result, served: Served, *, with_times: bool = False) -> dict[str, Any]:
    """One request as plain data; times in seconds from the start of the run."""
    asked, finishes = served.asked, served.finishes
    values: dict[str, Any] = {
        "id": served.id,
        "label": asked.label,
        "replica": result.replicas[served.replica].name,
        "principal": asked.principal,
        "tenant": asked.tenant,
        "session": asked.session,
        "priority": asked.priority,
        "arrival": asked.arrival,
        "num_prompt_tokens": asked.prompt.num_tokens,
        "num_output_tokens": served.num_output_tokens,
        "num_cached_tokens": finishes[0].num_cached_tokens if finishes else 0,
        "num_preemptions": sum(finish.num_preemptions for finish in finishes),
        "reasons": [finish.reason.value for finish in finishes],
        "error": served.error or next((finish.error for finish in finishes if finish.error), None),
        "first_token": served.first_token,
        "finished": served.finished,
        "queue_s": queue_s(served),
        "ttft_s": ttft_s(served),
        "e2e_s": e2e_s(served),
    }
    if with_times:
        values["token_times"] = [result.token_times(served, choice) for choice in range(asked.n)]
    return values
