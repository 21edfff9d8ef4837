#!/usr/bin/env python3
"""How an engine is shared: the fair order beside order of arrival, on a virtual clock.

    .venv/bin/python benchmarks/fairness.py

First two tenants with requests always waiting, one asking twice as much: the largest gap of weighted service (prompt
tokens + 2 x output tokens) against the bound of one largest request and one step's budget, and Jain's index. Then seven
tenants, alone and beside an eighth that asks a hundred times as much: the least share of the seven, and the 95th
percentile of their time to first token.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from chairlift.core.policy import OrderName
from tenants import Sizes, arrivals, chat_sizes, fixed_sizes, largest_request, serve, uneven_sizes
from virtual_engine import CPU_LIKE, GPU_LIKE, Cost

ORDERS: tuple[OrderName, ...] = ("fair", "fcfs")


def two_tenants(name: str, sizes: Sizes, rate: float, max_num_seqs: int) -> None:
    requests = arrivals({"a": rate, "b": 2 * rate}, 360.0, sizes, seed=1, num_at_once=100)
    bound = largest_request(requests) + 512
    for order in ORDERS:
        shares = serve(requests, order, CPU_LIKE, until_s=360.0, max_num_seqs=max_num_seqs, max_num_batched_tokens=512)
        service = " ".join(f"{each:>9.0f}" for each in shares.service.values())
        print(f"{name:<8}{max_num_seqs:>6}  {order:<6}{service}{shares.max_gap:>10.0f}{bound:>8.0f}{shares.jain:>8.4f}")


def flood(name: str, cost: Cost, rate: float, max_num_seqs: int, max_tokens: int) -> None:
    normal = {f"t{number}": rate for number in range(7)}
    names = list(normal)
    alone = serve(
        arrivals(normal, 120.0, chat_sizes, seed=3),
        "fair",
        cost,
        until_s=120.0,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_tokens,
    ).ttft_s(names, 95)
    requests = arrivals({**normal, "flood": 100 * rate}, 120.0, chat_sizes, seed=3)
    for order in ORDERS:
        shares = serve(
            requests, order, cost, until_s=120.0, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_tokens
        )
        ttft_s = shares.ttft_s(names, 95)
        share, part = shares.least_share(names), 1 - shares.service["flood"] / sum(shares.service.values())
        print(
            f"{name:<6}{rate:>6}{max_num_seqs:>6}{max_tokens:>7}  {order:<6}{share:>7.2f}{part:>8.0%}"
            f"{alone * 1e3:>10.0f} ms{ttft_s * 1e3:>10.0f} ms{ttft_s / alone:>8.1f}x"
        )


def main() -> None:
    print("two tenants with requests always waiting")
    print("sizes    slots  order         a         b       gap   bound    Jain")
    for max_num_seqs in (8, 19, 64):
        two_tenants("fixed", fixed_sizes, 3.0, max_num_seqs)
        two_tenants("uneven", uneven_sizes, 15.0, max_num_seqs)
    print("\nseven tenants, and an eighth that floods; TTFT p95 of the seven alone and flooded")
    print("device  rate slots budget  order   share  of all     alone    flooded   ratio")
    for cost_name, cost, rates in (("gpu", GPU_LIKE, (1.0, 4.0)), ("cpu", CPU_LIKE, (0.3, 1.0))):
        for rate in rates:
            for max_num_seqs, max_tokens in ((16, 128), (64, 256)):
                flood(cost_name, cost, rate, max_num_seqs, max_tokens)


if __name__ == "__main__":
    main()
