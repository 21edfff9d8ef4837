"""A server at this moment, put together for one view of it out of what engine, client and explanations know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from chairlift import __version__
from chairlift.core.look import Look, Seen
from chairlift.core.types import EngineStats, FinishReason
from chairlift.metrics.latency import percentile
from chairlift.server.client import EngineClient
from chairlift.server.explanations import Explanations, Told
from chairlift.server.identity import View
from chairlift.server.ui.shapes import Blocks, Counts, Ended, EngineSeen, Group, Lately, Live, Row
from chairlift.wire import Watched

MAX_ENDED = 40
"""Most of the last requests that are listed."""
MAX_GROUPED = 500
"""Of how many of the last requests the figures by tenant are."""
MAX_GROUPS = 24
_GOOD = frozenset((FinishReason.STOP, FinishReason.LENGTH))


class Scene:
    """One moment of one engine client, as one view may see it. `now` is in the engine's seconds."""

    def __init__(
        self, client: EngineClient, explanations: Explanations, view: View, watched: Watched | None, now: float
    ) -> None:
        self._client = client
        self._explanations = explanations
        self._view = view
        self._watched = watched
        self._now = now

    def live(self, state: str, models: Sequence[str], up_s: float) -> Live:
        """All of it."""
        view, ready = self._view, self._client.ready.result()
        ended = list(self._visible(self._explanations.ended(MAX_GROUPED)))
        return Live(
            state=state,
            sees="all" if view.sees_all else "own" if view.sees_own else "none",
            version=__version__,
            models=list(models) if ready.generates else [],
            max_model_len=ready.max_model_len,
            up_s=round(up_s, 3),
            looked_s=None if self._watched is None else round(max(0.0, self._now - self._watched.now), 3),
            engines=list(self._engines(models)),
            lately=self._lately() if view.sees_sums else None,
            groups=self._groups(ended),
            ended=[self._ended(told) for told in ended[:MAX_ENDED]],
        )

    def may_see(self, told: Told) -> bool:
        """Whether a request is one that this view is of."""
        view = self._view
        return view.sees_all or (view.sees_own and told.principal == view.principal.name)

    def name(self, engine_id: int) -> str | None:
        """The public id of a request that may be named here."""
        told = self._explanations.told(engine_id)
        return told.id if told is not None and self.may_see(told) else None

    def _visible(self, several: Iterable[Told]) -> Iterator[Told]:
        return (told for told in several if self.may_see(told))

    # ------------------------------------------------------------ engines

    def _engines(self, models: Sequence[str]) -> Iterator[EngineSeen]:
        client, ready = self._client, self._client.ready.result()
        metrics, beside = client.metrics, client.pass_metrics
        if metrics is None:
            return
        looks = self._watched.looks if self._watched is not None and not client.dead.done() else []
        nothing = Look([], [])
        blocks = ready.block_size, ready.num_blocks
        yield self._engine(models[0], ready.generates, metrics.stats, blocks, looks[0] if looks else nothing)
        if beside is not None and beside is not metrics and ready.encoder is not None:
            look = looks[1] if len(looks) > 1 else nothing
            yield self._engine(ready.encoder.model_name, False, beside.stats, (ready.encoder.max_model_len, 0), look)

    def _engine(
        self, model: str, generates: bool, stats: EngineStats, blocks: tuple[int, int], look: Look
    ) -> EngineSeen:
        return EngineSeen(
            model=model,
            generates=generates,
            counts=_counts(stats, *blocks) if self._view.sees_sums else None,
            running=list(self._rows(look.running)),
            waiting=list(self._rows(look.waiting)),
        )

    def _rows(self, several: Iterable[Seen]) -> Iterator[Row]:
        now = self._now
        for seen in several:
            told = self._explanations.told(seen.id)
            if not (self._view.sees_all if told is None else self.may_see(told)):
                continue
            first = 0 if told is None else told.parts[seen.id][0]
            yield Row(
                id=None if told is None else told.id,
                choice=first + seen.choice,
                principal="" if told is None else told.principal,
                tenant="" if told is None else told.tenant,
                slot=seen.slot if seen.slot >= 0 else None,
                phase=seen.phase.value,
                prompt_tokens=seen.num_prompt_tokens,
                cached_tokens=seen.num_cached_tokens,
                computed_tokens=seen.num_computed_tokens,
                output_tokens=seen.num_output_tokens,
                max_output_tokens=seen.max_output_tokens,
                blocks=seen.num_blocks,
                preemptions=seen.num_preemptions,
                age_s=_seconds(now - seen.arrival),
                running_s=None if seen.first_scheduled is None else _seconds(now - seen.first_scheduled),
            )

    def _lately(self) -> Lately | None:
        recent, now = self._client.recent, self._now
        if recent is None:
            return None
        return Lately(
            rates=recent.rates(now), ttft_s=recent.ttft(now), itl_s=recent.itl(now), series=recent.series(now)
        )

    # ------------------------------------------------------------ requests

    def _groups(self, ended: Sequence[Told]) -> list[Group]:
        """The busiest first."""
        found: dict[tuple[str, str], tuple[Group, list[float]]] = {}

        def of(told: Told) -> tuple[Group, list[float]]:
            key = told.principal, told.tenant
            if key not in found:
                group = Group(
                    principal=key[0], tenant=key[1], running=0, waiting=0, ended=0, failed=0, output_tokens=0,
                    ttft_p50_s=None, ttft_p99_s=None,
                )  # fmt: skip
                found[key] = group, []
            return found[key]

        for told in self._visible(self._explanations.live(MAX_GROUPED)):
            group, _ = of(told)
            if told.has_joined:
                group.running += 1
            else:
                group.waiting += 1
        for told in ended:
            group, firsts = of(told)
            group.ended += 1
            group.failed += any(finish.reason not in _GOOD for finish in told.ended)
            for finish in told.ended:
                group.output_tokens += finish.num_output_tokens
                if finish.first_token is not None:
                    firsts.append(finish.first_token - finish.arrival)
        for group, firsts in found.values():
            if firsts:
                firsts.sort()
                group.ttft_p50_s, group.ttft_p99_s = (_seconds(percentile(firsts, percent)) for percent in (50, 99))
        groups = [group for group, _ in found.values()]
        groups.sort(key=lambda group: (-group.running - group.waiting, -group.output_tokens, group.tenant))
        return groups[:MAX_GROUPS]

    def _ended(self, told: Told) -> Ended:
        ends = told.ended
        arrival, finished = ends[0].arrival, max(finish.finished for finish in ends)
        starts = [finish.first_scheduled for finish in ends if finish.first_scheduled is not None]
        firsts = [finish.first_token for finish in ends if finish.first_token is not None]
        prompts = [finish for finish in ends if finish.choice == 0]
        return Ended(
            id=told.id,
            principal=told.principal,
            tenant=told.tenant,
            choices=len(ends),
            prompt_tokens=sum(finish.num_prompt_tokens for finish in prompts),
            cached_tokens=sum(finish.num_cached_tokens for finish in prompts),
            output_tokens=sum(finish.num_output_tokens for finish in ends),
            queue_s=_seconds(min(starts) - arrival) if starts else None,
            ttft_s=_seconds(min(firsts) - arrival) if firsts else None,
            total_s=_seconds(finished - arrival),
            ended_by=", ".join(sorted({finish.reason.value for finish in ends})),
            ago_s=_seconds(self._now - finished),
        )


def _counts(stats: EngineStats, block_size: int, num_blocks: int) -> Counts:
    return Counts(
        running=stats.num_running,
        waiting=stats.num_waiting,
        waiting_by_reason={reason.value: count for reason, count in stats.waiting_by_reason.items()},
        max_num_seqs=stats.max_num_seqs,
        max_num_batched_tokens=stats.max_num_batched_tokens,
        preemptions=stats.num_preemptions,
        prefix_queries=stats.prefix_queries,
        prefix_hits=stats.prefix_hits,
        step_tokens=stats.num_step_tokens,
        step_s=round(stats.step_s, 6),
        blocks=Blocks(size=block_size, total=num_blocks, used=stats.num_used_blocks, cached=stats.num_cached_blocks),
    )


def _seconds(value: float) -> float:
    """To the millisecond; a clock that went back stands still."""
    return round(max(0.0, value), 3)
