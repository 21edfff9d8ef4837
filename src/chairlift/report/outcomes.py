"""How requests fared, over all engines of a run: latencies as `metrics.latency` defines them, and sums by owner."""

from __future__ import annotations

from dataclasses import dataclass, field

from chairlift.core.types import Finish, FinishReason
from chairlift.metrics.latency import e2e, ttft
from chairlift.report.owners import Names
from chairlift.report.rows import About
from chairlift.report.values import Values


@dataclass(slots=True)
class Group:
    """Requests of one owner; tokens of those that were completed."""

    num_requests: int = 0
    num_completed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    ttft: Values = field(default_factory=Values)
    e2e: Values = field(default_factory=Values)


@dataclass(slots=True)
class _Open:
    """A request some of whose answers are not over."""

    about: About
    choices: set[int]
    """That are not over."""
    is_whole: bool
    """Whether all answers were seen and came to their ends."""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float = float("-inf")


class Outcomes:
    """Takes the endings of all answers. Requests count in latencies when every answer came to its end."""

    def __init__(self, names: Names | None = None) -> None:
        self.names = Names() if names is None else names
        self.groups: list[Group] = []
        """By owner."""
        self.ttft = Values()
        self.e2e = Values()
        self.queue = Values()
        """Seconds from arriving to joining."""
        self.itl = Values()
        """Inter-token latencies of all answers, whatever became of them."""
        self.num_requests = 0
        self.num_completed = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        """Of all that joined and are over: what was looked for in the prefix cache, and what was found."""
        self.num_refused = 0
        self.last = float("-inf")
        """End of the last answer."""
        self.reasons: dict[str, int] = {}
        """Answers by what ended them."""
        self.labels: dict[int, str] = {}
        """What people call requests, if not by their numbers."""
        self._open: dict[int, _Open] = {}

    @property
    def num_open(self) -> int:
        """Requests that are not over."""
        return len(self._open)

    def owner(self, about: About) -> int:
        """Number of who asked."""
        number = self.names.number(about.owner)
        self.cover_names()
        return number

    def cover_names(self) -> None:
        """Have a group for every name, also of those who asked somebody else."""
        while len(self.groups) < len(self.names.names):
            self.groups.append(Group())

    def ask(self, about: About, choices: set[int] | None = None) -> None:
        """A request came; of one that began before the record, perhaps only some answers are not over."""
        self.num_requests += 1
        self.groups[self.owner(about)].num_requests += 1
        choices = set(range(about.n)) if choices is None else choices
        self._open[about.id] = _Open(about, choices, len(choices) == about.n)

    def refuse(self, about: About) -> None:
        """A request came, and was turned away."""
        self.num_refused += 1
        self.groups[self.owner(about)].num_requests += 1

    def is_open(self, request_id: int, choice: int) -> bool:
        """Whether this answer was asked for and is not over."""
        one = self._open.get(request_id)
        return one is not None and choice in one.choices

    def knows(self, request_id: int) -> bool:
        """Whether some answer of this request is open."""
        return request_id in self._open

    def about(self, request_id: int) -> About | None:
        """A request that is not over."""
        one = self._open.get(request_id)
        return None if one is None else one.about

    def end(self, finish: Finish) -> None:
        """An answer is over; one that is not open is ignored."""
        one = self._open.get(finish.id)
        if one is None or finish.choice not in one.choices:
            return
        self.reasons[finish.reason.value] = self.reasons.get(finish.reason.value, 0) + 1
        self.num_preemptions += finish.num_preemptions
        self.last = max(self.last, finish.finished)
        one.num_output_tokens += finish.num_output_tokens
        if finish.first_scheduled is not None:
            one.first_scheduled = _least(one.first_scheduled, finish.first_scheduled)
        if finish.first_token is not None:
            one.first_token = _least(one.first_token, finish.first_token)
        one.finished = max(one.finished, finish.finished)
        one.is_whole = one.is_whole and finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
        if finish.choice == 0 and finish.first_scheduled is not None:
            one.num_cached_tokens = finish.num_cached_tokens
            self.num_cached_tokens += finish.num_cached_tokens
            self.num_prompt_tokens += finish.num_prompt_tokens
        one.choices.remove(finish.choice)
        if not one.choices:
            del self._open[finish.id]
            if one.is_whole:
                self._complete(one)

    def _complete(self, one: _Open) -> None:
        group = self.groups[self.owner(one.about)]
        self.num_completed += 1
        group.num_completed += 1
        group.num_prompt_tokens += one.about.num_prompt_tokens
        group.num_cached_tokens += one.num_cached_tokens
        group.num_output_tokens += one.num_output_tokens
        arrival = one.about.arrival
        if one.first_scheduled is not None:
            self.queue.add(one.first_scheduled - arrival)
        if one.first_token is not None:
            self.ttft.add(ttft(arrival, one.first_token))
            group.ttft.add(ttft(arrival, one.first_token))
        self.e2e.add(e2e(arrival, one.finished))
        group.e2e.add(e2e(arrival, one.finished))


def _least(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
