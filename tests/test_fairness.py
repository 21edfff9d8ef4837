"""Tenants share what there is, whatever one of them asks for; `benchmarks/fairness.py` prints more of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chairlift.core.policy import OrderName
from tenants import Shares, Sizes, arrivals, chat_sizes, fixed_sizes, largest_request, serve, uneven_sizes
from virtual_engine import CPU_LIKE, GPU_LIKE, Cost

NORMAL = [f"t{number}" for number in range(7)]


@pytest.mark.parametrize(("sizes", "rate"), [(fixed_sizes, 3.0), (uneven_sizes, 15.0)])
@pytest.mark.parametrize("max_num_seqs", [8, 19, 64])
def test_two_backlogged_tenants_stay_within_one_request_of_each_other(
    sizes: Sizes, rate: float, max_num_seqs: int
) -> None:
    """IP6: although one asks for twice as much. In order of arrival it gets twice as much."""
    requests = arrivals({"a": rate, "b": 2 * rate}, 40.0, sizes, seed=1, num_at_once=100)
    shares = {
        order: serve(requests, order, CPU_LIKE, until_s=40.0, max_num_seqs=max_num_seqs, max_num_batched_tokens=512)
        for order in ("fair", "fcfs")
    }
    bound = largest_request(requests) + 512
    assert shares["fair"].max_gap <= bound
    assert shares["fair"].jain >= 0.98
    assert shares["fcfs"].max_gap > 3 * bound, "what order of arrival gives as well proves nothing"


def flood(cost: Cost, rate: float, until_s: float, order: OrderName = "fair") -> tuple[Shares, Shares]:
    """Seven who ask normally, alone and then beside one who asks a hundred times as much."""
    normal = dict.fromkeys(NORMAL, rate)
    both = []
    for rates in (normal, {**normal, "flood": 100 * rate}):
        requests = arrivals(rates, until_s, chat_sizes, seed=3)
        both.append(serve(requests, order, cost, until_s=until_s, max_num_seqs=64, max_num_batched_tokens=256))
    return both[0], both[1]


def test_a_flood_of_one_tenant_leaves_the_others_their_share() -> None:
    """S13, on a device with room for many rows."""
    alone, flooded = flood(GPU_LIKE, 2.0, 15.0)
    assert flooded.service["flood"] > 5 * max(flooded.service[name] for name in NORMAL)
    assert flooded.least_share(NORMAL) >= 0.9
    assert flooded.ttft_s(NORMAL, 95) <= 2 * alone.ttft_s(NORMAL, 95)
    _, first_come = flood(GPU_LIKE, 2.0, 15.0, "fcfs")
    assert first_come.ttft_s(NORMAL, 95) > 10 * alone.ttft_s(NORMAL, 95)


def test_a_flood_costs_the_others_the_length_of_its_steps() -> None:
    """Where prompt tokens are dear a full step is long: a newcomer waits for the present one, a slot, and its own."""
    alone, flooded = flood(CPU_LIKE, 0.6, 60.0)
    assert flooded.least_share(NORMAL) >= 0.9
    longest_step_s = CPU_LIKE.step_s + 64 * CPU_LIKE.row_s + 256 * CPU_LIKE.chunk_token_s
    assert flooded.ttft_s(NORMAL, 95) <= alone.ttft_s(NORMAL, 95) + 2 * longest_step_s


def test_invented_tenants_gain_nothing() -> None:
    """One principal spreads its requests over as many names as it has requests, the other uses none."""
    requests = arrivals({"honest": 10.0, "liar": 10.0}, 30.0, chat_sizes, seed=5, num_at_once=100)
    spread = [replace(r, tenant=f"name{r.id}") if r.principal == "liar" else r for r in requests]
    shares = serve(spread, "fair", CPU_LIKE, until_s=30.0, max_num_seqs=16, max_num_batched_tokens=256)
    assert shares.max_gap <= largest_request(requests) + 256
