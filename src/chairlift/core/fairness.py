"""Fair order: whoever has had the least weighted service goes next.

Two levels, each a set of counters: principals, and the tenants inside each principal. A tenant's name costs nothing to
invent, so it competes only for its principal's share.

Service is `input_token_weight` for each prompt token computed for the first time (not those found in the cache, nor
those computed again after a preemption) and `output_token_weight` for each generated token, divided by the owner's
weight. It is charged when a sequence joins, its output as long as its owner's outputs were lately; what it generates
beyond is charged a block ahead, and what was charged too much comes back when it ends. A counter that grew only as
tokens come would see nothing of what a sequence is going to get: whoever stands a little lower would take every slot
that comes free until those are full, and the gap would swing by what all slots hold instead of by one request.

Who had nothing waiting is lifted to about where the others stand: service not asked for is not saved up.

With `charges_ahead` off, counters are those that were published, swings and all: for comparing with engines that have
these.

Source: Virtual Token Counter, Sheng et al. 2024, arXiv:2401.00588, and its variant with predicted lengths; start tags
and the clock from fair queueing of packets, Goyal et al. 1996; the hierarchy is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chairlift.core.ordering import Sorted
from chairlift.core.sequence import Order, Sequence

MAX_IDLE_COUNTERS = 4096
"""Counters kept of owners that have nothing in flight; beyond, those with the least to make up for are forgotten."""


FIRST_EXPECTED_TOKENS = 256
"""Output that is expected before anything has ended."""
OUTPUT_SHARE = 1 / 16
"""Weight of the latest output in the mean of a principal's outputs."""
EVERYBODY = "\0"
"""No principal's name."""


class Counters:
    """Service by name, and who has something in flight, and who waits."""

    __slots__ = ("_charges_ahead", "_clock", "_floor", "_weights", "active", "service", "waiting")

    def __init__(self, weights: Mapping[str, float], *, charges_ahead: bool = True) -> None:
        self._weights = dict(weights)
        self._charges_ahead = charges_ahead
        self.service: dict[str, float] = {}
        self.active: dict[str, int] = {}
        """Sequences in flight by name; names with some only."""
        self.waiting: dict[str, int] = {}
        """Those among them that have not joined yet."""
        self._clock = 0.0
        """Service that each of those who waited would have, had it been shared exactly."""
        self._floor = 0.0
        """The clock before the last who joined."""

    def enter(self, name: str) -> None:
        """One more sequence of `name` waits; a name that had none waiting is lifted to where the others stood lately.

        That is a request below those who join all the time, so that a newcomer goes before their next. As published,
        to the least of those who wait, and not at all where nobody does.
        """
        if name not in self.waiting:
            others = [self.service[one] for one in self.waiting]
            if self._charges_ahead:
                floor = min(others, default=self._floor)
                self.service[name] = max(self.service.get(name, 0.0), min(floor, self._floor))
            else:
                self.service[name] = max(self.service.get(name, 0.0), min(others, default=0.0))
        self.waiting[name] = self.waiting.get(name, 0) + 1
        self.active[name] = self.active.get(name, 0) + 1

    def join(self, name: str) -> None:
        """One sequence of `name` waits no longer."""
        self.waiting[name] -= 1
        if not self.waiting[name]:
            del self.waiting[name]
        self._floor = self._clock

    def leave(self, name: str) -> list[str]:
        """One sequence of `name` is over. Gives the names that were forgotten to keep their number bounded."""
        self.active[name] -= 1
        if self.active[name]:
            return []
        del self.active[name]
        return self._forget() if len(self.service) > len(self.active) + MAX_IDLE_COUNTERS else []

    def charge(self, name: str, amount: float) -> None:
        """`name` was served this much."""
        weight = self._weights.get(name, 1.0)
        self.service[name] += amount / weight
        self._clock += amount / (weight + sum(self._weights.get(one, 1.0) for one in self.waiting if one != name))

    def _forget(self) -> list[str]:
        idle = sorted((name for name in self.service if name not in self.active), key=self.service.__getitem__)
        forgotten = idle[: len(idle) // 2]
        for name in forgotten:
            del self.service[name]
        return forgotten


class Service:
    """What everybody has been served: counters of principals, and of the tenants of each."""

    __slots__ = (
        "_charges_ahead",
        "_input_weight",
        "_mean_outputs",
        "_output_weight",
        "_tenant_weights",
        "principals",
        "tenants",
    )

    def __init__(
        self, weights: Mapping[str, float], input_weight: float, output_weight: float, *, charges_ahead: bool = True
    ) -> None:
        self.principals = Counters(weights, charges_ahead=charges_ahead)
        self._charges_ahead = charges_ahead
        self.tenants: dict[str, Counters] = {}
        """By principal."""
        self._tenant_weights = weights
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._mean_outputs: dict[str, float] = {}
        """Lately, in tokens, by principal; under `EVERYBODY` that of all."""

    def enter(self, sequence: Sequence) -> None:
        """A sequence was queued for the first time."""
        principal, tenant = sequence.owner
        self.principals.enter(principal)
        if principal not in self.tenants:
            self.tenants[principal] = Counters(self._tenant_weights, charges_ahead=self._charges_ahead)
        self.tenants[principal].enter(tenant)

    def join(self, sequence: Sequence, num_inputs: int) -> None:
        """A sequence joins for the first time: so many prompt tokens will be computed, and it will generate some."""
        self._unqueue(sequence)
        means = self._mean_outputs
        expected = means.get(sequence.owner[0], means.get(EVERYBODY, FIRST_EXPECTED_TOKENS))
        sequence.tag = self.principals.service[sequence.owner[0]]
        sequence.paid_inputs = num_inputs
        if not self._charges_ahead:
            expected = 1
        sequence.paid_outputs = max(1, min(sequence.end - sequence.num_prompt, round(expected)))
        self._charge(sequence, num_inputs, sequence.paid_outputs)

    def tag(self, sequence: Sequence) -> float:
        """Service of its principal when it joined, or until now: its claim among those that run."""
        return sequence.tag if sequence.paid_outputs else self.principals.service[sequence.owner[0]]

    def go_on(self, sequence: Sequence, num_outputs: int) -> None:
        """A sequence generates on for up to so many tokens, if that is more than it was charged for."""
        if num_outputs > sequence.paid_outputs:
            self._charge(sequence, 0, num_outputs - sequence.paid_outputs)
            sequence.paid_outputs = num_outputs

    def leave(self, sequence: Sequence) -> None:
        """A sequence is over: what was charged becomes what it got."""
        principal, tenant = sequence.owner
        if not sequence.paid_outputs:
            self._unqueue(sequence)
        else:
            num_computed = max(0, min(sequence.peak, sequence.num_prompt) - sequence.num_cached)
            unused = min(0, num_computed - sequence.paid_inputs)
            self._charge(sequence, unused, sequence.num_output - sequence.paid_outputs)
            for name in (principal, EVERYBODY):
                mean = self._mean_outputs.get(name, sequence.num_output)
                self._mean_outputs[name] = mean + (sequence.num_output - mean) * OUTPUT_SHARE
        self.tenants[principal].leave(tenant)
        for forgotten in self.principals.leave(principal):
            del self.tenants[forgotten]
            self._mean_outputs.pop(forgotten, None)

    def _unqueue(self, sequence: Sequence) -> None:
        principal, tenant = sequence.owner
        self.principals.join(principal)
        self.tenants[principal].join(tenant)

    def _charge(self, sequence: Sequence, num_inputs: int, num_outputs: int) -> None:
        amount = num_inputs * self._input_weight + num_outputs * self._output_weight
        principal, tenant = sequence.owner
        self.principals.charge(principal, amount)
        self.tenants[principal].charge(tenant, amount)


class Fair:
    """A line in which the least served principal goes next, with its least served tenant's first sequence.

    Among equals who has waited longest, so that no name is an advantage.
    """

    __slots__ = ("_num_waiting", "_principals", "_service")

    def __init__(self, service: Service) -> None:
        self._service = service
        self._principals: dict[str, dict[str, Sorted]] = {}
        """Lines by principal and tenant, in the order in which they came; those with somebody only."""
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for tenants in self._principals.values():
            for line in tenants.values():
                yield from line

    def push(self, sequence: Sequence) -> None:
        principal, tenant = sequence.owner
        tenants = self._principals.setdefault(principal, {})
        if tenant not in tenants:
            tenants[tenant] = Sorted()
        tenants[tenant].push(sequence)
        self._num_waiting += 1

    def peek(self) -> Sequence:
        # Looked for anew each time: counters go up and down, and those who wait under many names are few.
        service = self._service
        firsts = []
        for principal in _least_served(self._principals, service.principals.service):
            tenants = self._principals[principal]
            firsts += [tenants[name].peek() for name in _least_served(tenants, service.tenants[principal].service)]
        return min(firsts, key=_in_line)

    def remove(self, sequence: Sequence) -> None:
        principal, tenant = sequence.owner
        tenants = self._principals[principal]
        tenants[tenant].remove(sequence)
        self._num_waiting -= 1
        if not tenants[tenant]:
            del tenants[tenant]
        if not tenants:
            del self._principals[principal]


def _least_served(names: Iterable[str], service: Mapping[str, float]) -> list[str]:
    """The names of the least service: one, unless several are equal."""
    names = list(names)
    least = min([service[name] for name in names])
    return [name for name in names if service[name] == least]


def _in_line(sequence: Sequence) -> Order:
    return sequence.order
