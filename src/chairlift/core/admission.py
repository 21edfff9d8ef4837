"""Admission: whether a request may enter, said at once instead of after a long wait.

    admit --> queued --started--> running --ended--> gone
      |         `-------ended------------------------^
      |-> Overloaded   a cap is reached, or a deadline cannot be kept: later it may be served
      `-> NeverFits    no state of the queue has room for it

The queue is everything admitted that has not taken a slot, wherever it is: being tokenised, in a socket, in the engine.
While the engine reports free slots and nobody waiting, who finds a slot does not queue and no cap on queueing holds;
as soon as somebody waits in the engine, everybody who waits counts.

A full queue must not keep out those who would be served before most of it: urgent requests behind a flood of background
work, a modest user behind a greedy one. They may enter until the queue is a quarter over its caps. A modest tenant of a
greedy principal may go half as far: whatever names a client makes up, the rest is for others.

The background (`core/background.py`) queues behind everybody and is in nobody's way: it is not counted here.

A principal may have caps of its own instead of those for everybody, and so many requests and tokens a minute.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from chairlift.core.allowances import Allowances, OwnLimits
from chairlift.core.errors import InvalidOption, NeverFits, Overloaded
from chairlift.core.pace import Pace
from chairlift.core.policy import OrderName
from chairlift.core.tickets import Key, Place, Tally, Ticket, Who
from chairlift.core.types import BACKGROUND_PRIORITY, EngineStats

DEFAULT_MAX_NUM_QUEUED_REQS = 1024
"""Of a server that was told nothing. Eight times the default number of slots: longer than anybody waits; a queue
without a bound fills the memory."""

FRONT_SHARE = 0.25
"""How far over a cap on the queue those may go who would be served before half of it."""


class RefusalReason(StrEnum):
    """Why a request was refused for now. The list is closed: metrics and clients may rely on it."""

    MAX_NUM_QUEUED_REQS = "max_num_queued_reqs"
    MAX_NUM_QUEUED_TOKENS = "max_num_queued_tokens"
    MAX_NUM_QUEUED_REQS_PER_PRINCIPAL = "max_num_queued_reqs_per_principal"
    MAX_NUM_QUEUED_TOKENS_PER_PRINCIPAL = "max_num_queued_tokens_per_principal"
    MAX_NUM_REQS_PER_PRINCIPAL = "max_num_reqs_per_principal"
    MAX_REQS_PER_MINUTE = "max_reqs_per_minute"
    MAX_TOKENS_PER_MINUTE = "max_tokens_per_minute"
    """Of a principal that has such limits."""
    DEADLINE = "deadline"
    """By the estimate, its deadline passes before it gets a slot."""


RATES = frozenset((RefusalReason.MAX_REQS_PER_MINUTE, RefusalReason.MAX_TOKENS_PER_MINUTE))
"""Refusals that are about who asks, not about how much is going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Caps; None is none. A request with n answers counts n times, its prompt once.

    `max_num_reqs_per_principal` bounds what is in flight, queued and running; the others what is queued.

    Raises:
        InvalidOption: a cap below 0, or one that would let nobody in.
    """

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_num_queued_reqs_per_principal: int | None = None
    max_num_queued_tokens_per_principal: int | None = None
    max_num_reqs_per_principal: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            cap = getattr(self, name)
            if cap is not None and (not isinstance(cap, int) or isinstance(cap, bool) or cap < 0):
                raise InvalidOption(f"{name} must be a whole number of at least 0")
        if self.max_num_reqs_per_principal == 0:
            raise InvalidOption("max_num_reqs_per_principal must be at least 1")


class Admission:
    """Decides who enters an engine, and counts who is in. State is bounded by what is in flight.

    `policy` is the engine's order: it says who of the waiting will be served before a newcomer. Neither thread-safe nor
    aware of time: `now` is in the driver's seconds, the clock of the requests' deadlines.
    """

    def __init__(
        self, limits: AdmissionLimits | None = None, *, max_num_seqs: int = 0, policy: OrderName = "fcfs"
    ) -> None:
        self.limits = limits if limits is not None else AdmissionLimits()
        self._own_limits: Mapping[str, OwnLimits] = {}
        self._limits_of: dict[str, AdmissionLimits] = {}
        """Of principals that have some of their own; made when first needed."""
        self._allowances = Allowances()
        self._policy = policy
        self._max_num_seqs = max_num_seqs
        self._pace = Pace(max_num_seqs)
        self._all = Tally()
        self._background = Tally()
        self._nobody = Tally()
        self._principals: dict[str, Tally] = {}
        self._tenants: dict[tuple[str, str], Tally] = {}
        self._line: list[Key] = []
        """Who is queued, in the order of service as far as admission knows it."""
        self._serial = 0

    @property
    def max_num_seqs(self) -> int:
        """Slots of the engine, as it was opened; 0 before."""
        return self._max_num_seqs

    @property
    def num_live(self) -> int:
        """Sequences admitted and not ended."""
        return self._all.num_live

    @property
    def num_queued(self) -> int:
        """Sequences admitted that have not taken a slot."""
        return self._all.num_queued

    @property
    def num_background(self) -> int:
        """Sequences of the background that are admitted and have not ended; they are in none of the other counts."""
        return self._background.num_live

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have not taken a slot."""
        return self._all.num_queued_tokens

    @property
    def num_principals(self) -> int:
        """Those with anything in flight."""
        return len(self._principals)

    @property
    def num_tenants(self) -> int:
        """Those of all principals together."""
        return len(self._tenants)

    def open(self, max_num_seqs: int) -> None:
        """The engine is there, with so many slots and nobody in them."""
        self._max_num_seqs = max_num_seqs
        self._pace = Pace(max_num_seqs)

    def set_limits(self, limits: AdmissionLimits) -> None:
        """Caps for what comes from now on; nobody who is in is put out."""
        self.limits = limits
        self._limits_of = {}

    def set_own_limits(self, own_limits: Mapping[str, OwnLimits]) -> None:
        """Limits of single principals, by name, from now on; they go before those for everybody."""
        self._own_limits = own_limits
        self._limits_of = {}
        self._allowances.set_limits(own_limits)

    # ------------------------------------------------------------ in

    def check_room(self, principal: str, tenant: str = "") -> None:
        """Refuse any ordinary request of `principal`, if even the smallest has no room: nothing needs to be read.

        Raises:
            Overloaded: as from `admit`, for a request of priority 0 without deadlines.
        """
        self._check_caps((principal, tenant), 1, [1], self._key(0, math.inf))

    def admit(
        self,
        principal: str,
        nums_tokens: Sequence[int],
        now: float,
        *,
        tenant: str = "",
        n: int = 1,
        priority: int = 0,
        ttft_deadline: float | None = None,
        e2e_deadline: float | None = None,
    ) -> list[Ticket]:
        """Tickets for requests that enter together or not at all: one for each prompt of so many tokens.

        Raises:
            Overloaded: refused for now, with the reason and the estimated wait.
            NeverFits: larger than the caps allow even when nobody else is there.
        """
        if not nums_tokens:
            return []
        if priority >= BACKGROUND_PRIORITY:
            return self._admit_background(principal, tenant, nums_tokens, n, priority, now)
        deadline = min(_or_never(ttft_deadline), _or_never(e2e_deadline))
        who, key = (principal, tenant), self._key(priority, deadline)
        self._check_rates(principal, sum(nums_tokens), now)
        self._check_caps(who, n, nums_tokens, key)
        if deadline < math.inf:
            wait_s = self._wait_s(who, n, key)
            # Who need not wait is not refused for waiting: if it is too late already, the engine says so, for good.
            if wait_s and now + wait_s > deadline:
                raise Overloaded(
                    f"Refused for now: the deadline is {max(0.0, deadline - now):.3f} s away. Estimated wait: about "
                    f"{max(0.1, wait_s):.1f} s.",
                    RefusalReason.DEADLINE,
                    wait_s,
                )
        self._allowances.enter(principal, sum(nums_tokens), now)
        own = self._principals.setdefault(principal, Tally())
        if who not in self._tenants:
            self._tenants[who] = Tally()
            own.num_tenants += 1
        tickets: list[Ticket] = []
        for num_tokens in nums_tokens:
            is_seated = self._all.num_queued + n <= self._pace.num_free
            ticket = Ticket(principal, tenant, n, num_tokens, (*key[:2], self._serial), is_seated)
            self._serial += 1
            insort(self._line, ticket.key)
            for tally in self._tallies(ticket):
                tally.num_live += n
                tally.queue(ticket, 1)
            tickets.append(ticket)
        return tickets

    def _admit_background(
        self, principal: str, tenant: str, nums_tokens: Sequence[int], n: int, priority: int, now: float
    ) -> list[Ticket]:
        """Nobody waits for the background, so it takes no places and there are no caps on it: whoever sends it bounds
        it. What a principal uses in a minute counts all the same."""
        self._check_rates(principal, sum(nums_tokens), now)
        self._allowances.enter(principal, sum(nums_tokens), now)
        tickets = [Ticket(principal, tenant, n, num_tokens, (priority, 0.0, 0), False) for num_tokens in nums_tokens]
        for ticket in tickets:
            self._background.num_live += n
            self._background.queue(ticket, 1)
        return tickets

    def tokenised(self, ticket: Ticket, num_tokens: int) -> None:
        """The prompt has so many tokens: the count is put right, and nobody is refused for it any more."""
        self._allowances.correct(ticket.principal, num_tokens - ticket.num_tokens)
        if ticket.place is Place.QUEUED:
            tallies = self._tallies(ticket)
            for tally in tallies:
                tally.queue(ticket, -1)
            ticket.num_tokens = num_tokens
            for tally in tallies:
                tally.queue(ticket, 1)

    def _tallies(self, ticket: Ticket) -> tuple[Tally, ...]:
        """Everything that counts it: everybody's, its principal's and its tenant's."""
        if ticket.is_background:
            return (self._background,)
        return self._all, self._principals[ticket.principal], self._tenants[ticket.principal, ticket.tenant]

    # ------------------------------------------------------------ through

    def started(self, ticket: Ticket, now: float) -> None:
        """The request took its slot. Doing it again changes nothing."""
        if ticket.place is Place.QUEUED:
            self._leave_line(ticket)
            ticket.place, ticket.started = Place.RUNNING, now

    def observe(self, stats: EngineStats, now: float) -> None:
        """The engine's counts after a step; after the `started` and `ended` of the same step."""
        self._pace.observe(stats, now)

    # ------------------------------------------------------------ out

    def ended(self, ticket: Ticket, now: float) -> None:
        """The request is over, however it ended. Doing it again changes nothing."""
        if ticket.place is Place.GONE:
            return
        if ticket.place is Place.QUEUED:
            self._leave_line(ticket)
        elif not ticket.is_background:
            self._pace.left(ticket.num_seqs, max(0.0, now - ticket.started))
        ticket.place = Place.GONE
        for tally in self._tallies(ticket):
            tally.num_live -= ticket.num_seqs
        if ticket.is_background:
            return
        own, part = self._principals[ticket.principal], self._tenants[ticket.principal, ticket.tenant]
        if not part.num_live:
            own.num_tenants -= 1
            del self._tenants[ticket.principal, ticket.tenant]
        if not own.num_live:
            del self._principals[ticket.principal]

    def _leave_line(self, ticket: Ticket) -> None:
        if not ticket.is_background:
            del self._line[bisect_left(self._line, ticket.key)]
        for tally in self._tallies(ticket):
            tally.queue(ticket, -1)

    def spent(self, principal: str, num_tokens: int, now: float) -> None:
        """So many tokens were generated for `principal`, whose prompts were counted when they entered."""
        self._allowances.spend(principal, num_tokens, now)

    # ------------------------------------------------------------ deciding

    def _key(self, priority: int, deadline: float) -> Key:
        return (priority, deadline if self._policy == "deadline" else 0.0, self._serial)

    def _check_rates(self, principal: str, num_tokens: int, now: float) -> None:
        reqs_s, tokens_s = self._allowances.wait_s(principal, num_tokens, now)
        wait_s = max(reqs_s, tokens_s)
        if wait_s:
            what = "requests" if reqs_s == wait_s else "tokens"
            raise Overloaded(
                f"Refused for now: your {what} of this minute are used up. Estimated wait: about "
                f"{max(0.1, wait_s):.1f} s.",
                RefusalReason.MAX_REQS_PER_MINUTE if reqs_s == wait_s else RefusalReason.MAX_TOKENS_PER_MINUTE,
                wait_s,
            )

    def _limits_for(self, principal: str) -> AdmissionLimits:
        """The caps that hold for a principal: its own where it has any."""
        own = self._own_limits.get(principal)
        if own is None:
            return self.limits
        if principal not in self._limits_of:
            self._limits_of[principal] = replace(self.limits, **own.caps())
        return self._limits_of[principal]

    def _check_caps(self, who: Who, n: int, nums_tokens: Sequence[int], key: Key) -> None:
        own, limits = self._principals.get(who[0], self._nobody), self._limits_for(who[0])
        over = self._overrun(limits, own, self._all, n, nums_tokens, self._pace.num_free)
        if over is not None and (over_share := self._over_share(who, key)):
            over = self._overrun(limits, own, self._all, n, nums_tokens, self._pace.num_free, over_share)
        if over is None:
            return
        reason, used, asked, cap = over
        alone = self._overrun(limits, self._nobody, self._nobody, n, nums_tokens, self._max_num_seqs)
        if alone is not None:
            raise NeverFits(f"the request asks for {alone[2]} where {alone[0]} is {alone[3]}", _PARAMS[alone[0]])
        if reason is RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL:
            wait_s = None if self._pace.service_s is None else self._pace.service_s / used
        else:
            wait_s = self._wait_s(who, n * len(nums_tokens), key)
        text = _TEXTS[reason].format(used=used, cap=cap)
        about = "not known yet" if wait_s is None else f"about {max(0.1, wait_s):.1f} s"
        raise Overloaded(f"Refused for now: {text}, and this needs {asked}. Estimated wait: {about}.", reason, wait_s)

    def _overrun(
        self,
        limits: AdmissionLimits,
        own: Tally,
        everybody: Tally,
        n: int,
        nums_tokens: Sequence[int],
        num_free: int,
        over_share: float = 0.0,
    ) -> tuple[RefusalReason, int, int, int] | None:
        """The first cap that would be exceeded, those on the queue by more than `over_share`: used, asked and cap."""
        cap = limits.max_num_reqs_per_principal
        num_seqs = n * len(nums_tokens)
        if cap is not None and own.num_live + num_seqs > cap:
            return RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL, own.num_live, num_seqs, cap
        num_seated = min(max(0, num_free - everybody.num_queued) // n, len(nums_tokens))
        if num_seated == len(nums_tokens):
            return None
        num_new, num_new_tokens = num_seqs - n * num_seated, sum(nums_tokens[num_seated:])
        own_reqs, own_tokens = own.waiting(num_free)
        all_reqs, all_tokens = everybody.waiting(num_free)
        for reason, used, asked, cap in (
            (_OWN_REQS, own_reqs, num_new, limits.max_num_queued_reqs_per_principal),
            (_OWN_TOKENS, own_tokens, num_new_tokens, limits.max_num_queued_tokens_per_principal),
            (_ALL_REQS, all_reqs, num_new, limits.max_num_queued_reqs),
            (_ALL_TOKENS, all_tokens, num_new_tokens, limits.max_num_queued_tokens),
        ):
            if cap is not None and used + asked > cap + int(over_share * cap):
                return reason, used, asked, cap
        return None

    def _num_ahead(self, who: Who, key: Key) -> tuple[float, float]:
        """Queued sequences that will be served before a newcomer at this place in the line.

        Of its principal, and of its tenant within that: the same unless the order is fair.
        """
        line, queued = self._line, self._all.num_queued
        mean_seqs = queued / len(line) if line else 1.0
        ahead = bisect_left(line, key) * mean_seqs
        if self._policy != "fair":
            return ahead, ahead
        better = bisect_left(line, (key[0], -math.inf, 0)) * mean_seqs
        own, part = self._principals.get(who[0], self._nobody), self._tenants.get(who, self._nobody)
        of_principal = min(ahead - better, own.num_queued * len(self._principals))
        of_tenant = min(of_principal, part.num_queued * own.num_tenants * len(self._principals))
        return better + of_principal, better + of_tenant

    def _over_share(self, who: Who, key: Key) -> float:
        """How far over the caps on the queue a newcomer at this place in the line may go."""
        of_principal, of_tenant = self._num_ahead(who, key)
        if 2 * of_principal < self._all.num_queued:
            return FRONT_SHARE
        return FRONT_SHARE / 2 if 2 * of_tenant < self._all.num_queued else 0.0

    def _wait_s(self, who: Who, num_seqs: int, key: Key) -> float | None:
        """Seconds until a newcomer at this place in the line has a slot; None if nothing is known yet."""
        _, ahead = self._num_ahead(who, key)
        wait_s = self._pace.slots_s(math.ceil(ahead + num_seqs - self._pace.num_free))
        if wait_s is None:
            return None
        num_tokens = self._all.num_queued_tokens * ahead / max(1, self._all.num_queued)
        return max(wait_s, self._pace.prompts_s(num_tokens))


def _or_never(deadline: float | None) -> float:
    return math.inf if deadline is None else deadline


_OWN_REQS = RefusalReason.MAX_NUM_QUEUED_REQS_PER_PRINCIPAL
_OWN_TOKENS = RefusalReason.MAX_NUM_QUEUED_TOKENS_PER_PRINCIPAL
_ALL_REQS = RefusalReason.MAX_NUM_QUEUED_REQS
_ALL_TOKENS = RefusalReason.MAX_NUM_QUEUED_TOKENS
_TEXTS = {
    _ALL_REQS: "{used} requests wait, of at most {cap}",
    _ALL_TOKENS: "{used} prompt tokens wait, of at most {cap}",
    _OWN_REQS: "you have {used} requests waiting, of at most {cap}",
    _OWN_TOKENS: "you have {used} prompt tokens waiting, of at most {cap}",
    RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL: "you have {used} requests in flight, of at most {cap}",
}
_PARAMS = {
    _ALL_REQS: "n",
    _ALL_TOKENS: "prompt",
    _OWN_REQS: "n",
    _OWN_TOKENS: "prompt",
    RefusalReason.MAX_NUM_REQS_PER_PRINCIPAL: "n",
}
