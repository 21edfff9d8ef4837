"""A workload at any rate: the same requests with the same contents, and only the gaps between arrivals stretched.

So two settings, or two rates, are compared on the same luck, and the search is not led astray by another draw.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from chairlift.core.errors import InvalidOption
from chairlift.sim.traffic import faster
from chairlift.sim.workload import Asked, Workload


class Offered:
    """What `make` gives, which must be the same each time.

    A rate is the mean of the whole: arrivals per second between the first and the last one. What is asked after an
    answer comes on top, and keeps its time to think.

    Raises:
        InvalidOption: a workload whose arrivals have no rate.
    """

    def __init__(self, make: Callable[[], Workload]) -> None:
        self._make = make
        asked = list(make())
        if len(asked) < 2 or not asked[-1].arrival > asked[0].arrival:
            raise InvalidOption("a plan needs requests that arrive one after the other, so that their rate can change")
        self.num_requests = len(asked)
        self.rate = (len(asked) - 1) / (asked[-1].arrival - asked[0].arrival)
        """As the workload comes."""
        self.goes_on = any(one.follow is not None for one in asked)
        """Whether answers bring about more requests. Those are drawn anew in each run."""
        self.sample = asked
        """One copy, to look at."""

    def factor(self, rate: float) -> float:
        """How many times as fast as it comes."""
        return rate / self.rate

    def at(self, rate: float, num_requests: int) -> Workload:
        """Its first `num_requests` requests, as they arrive when the whole comes at `rate` a second."""
        asked: Workload = self._make() if self.goes_on else self.sample
        return faster(islice(asked, num_requests), self.factor(rate))

    def differ(self, of: Callable[[Asked], object]) -> bool:
        """Whether requests differ in what `of` says of them."""
        first = of(self.sample[0])
        return any(of(asked) != first for asked in self.sample)
