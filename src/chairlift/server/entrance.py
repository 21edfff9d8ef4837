"""What every request for the engine meets on its way in, whether it wants text or vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from chairlift.core.admission import Admission, RefusalReason
from chairlift.core.errors import NeverFits, Overloaded
from chairlift.core.tickets import Ticket
from chairlift.metrics.serving import ServingMetrics
from chairlift.server.errors import ApiError, from_invalid, overloaded
from chairlift.server.fields import model_name

T = TypeVar("T")

INLINE_BYTES = 16 << 10
"""Bodies up to this size are read on the event loop: a few milliseconds at most, and no thread to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that has its places, before it is tokenised."""

    principal: str
    tenant: str
    arrival: float
    ttft_deadline: float | None
    e2e_deadline: float | None
    tickets: Sequence[Ticket]
    """One per prompt, or per text that is read for a vector."""


def admit(
    admission: Admission,
    nums_tokens: Sequence[int],
    now: float,
    *,
    principal: str,
    tenant: str,
    arrival: float,
    ttft_deadline_s: float | None,
    e2e_deadline_s: float | None,
    n: int = 1,
    priority: int = 0,
) -> Admitted:
    """Places for a request whose deadlines count from its arrival.

    Raises:
        Overloaded, NeverFits: as `Admission.admit`.
    """
    ttft_deadline, e2e_deadline = (
        None if after is None else arrival + after for after in (ttft_deadline_s, e2e_deadline_s)
    )
    tickets = admission.admit(
        principal,
        nums_tokens,
        now,
        tenant=tenant,
        n=n,
        priority=priority,
        ttft_deadline=ttft_deadline,
        e2e_deadline=e2e_deadline,
    )
    return Admitted(
        principal=principal,
        tenant=tenant,
        arrival=arrival,
        ttft_deadline=ttft_deadline,
        e2e_deadline=e2e_deadline,
        tickets=tickets,
    )


async def here_or_on(pool: Executor, work: Callable[[], T], *, inline: bool) -> T:
    """Here if it is little (`inline`), else on a thread."""
    return work() if inline else await asyncio.get_running_loop().run_in_executor(pool, work)


def check_model(content: dict[str, Any], served_names: Sequence[str]) -> None:
    """Raises an ApiError for a body that asks for a model that is not served: 404."""
    name = model_name(content)
    if name is not None and name not in served_names:
        served = ", ".join(f"`{one}`" for one in served_names)
        raise ApiError(
            404,
            f"The model `{name[:128]}` does not exist at this path, which serves {served}.",
            param="model",
            code="model_not_found",
        )


@contextmanager
def refusals(metrics: ServingMetrics | None, overload_status: int) -> Iterator[None]:
    """What admission refuses, as a response."""
    try:
        yield
    except Overloaded as error:
        if metrics is not None:
            metrics.on_rejection(RefusalReason(error.reason))
        raise overloaded(error, overload_status) from None
    except NeverFits as error:
        raise from_invalid(error) from None
