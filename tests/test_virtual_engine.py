from __future__ import annotations

import pytest

from virtual_engine import CPU_LIKE, VirtualEngine, poisson_arrivals, virtual_request, virtual_scheduler


def test_the_clock_says_what_steps_cost() -> None:
    driver = VirtualEngine(virtual_scheduler(4, 64), lambda plan: 0.5 + 0.25 * plan.num_tokens)
    driver.run([virtual_request(0, 1.0, 2, 3), virtual_request(1, 1.2, 4, 1)])
    # The first prefills alone; the second comes during that step and prefills beside the first one's decode.
    assert driver.served[0].token_times == [2.0, 3.75, 4.5]
    assert driver.served[1].token_times == [3.75]
    assert driver.served[1].ttft_s == pytest.approx(2.55)
    assert driver.inter_token_latencies() == [0.75, 1.75]
    assert [len(served.finishes) for served in driver.served.values()] == [1, 1]
    assert [(step.num_decodes, step.num_chunk_tokens) for step in driver.steps] == [(0, 2), (1, 4), (1, 0)]


def test_equal_seeds_give_equal_runs() -> None:
    runs = []
    for _ in range(2):
        driver = VirtualEngine(virtual_scheduler(8, 128), CPU_LIKE, noise=0.05, seed=3)
        driver.run(poisson_arrivals([(5.0, 10.0), (5.0, 20.0)], seed=1, mean_prompt=50, mean_output=20))
        runs.append([served.token_times for served in driver.served.values()])
    assert runs[0] == runs[1]
    assert all(len(driver.served[i].finishes) == 1 for i in driver.served)


def test_a_run_stops_where_it_is_told_and_goes_on_later() -> None:
    driver = VirtualEngine(virtual_scheduler(1, 64), lambda plan: 1.0)
    driver.run([virtual_request(0, 0.0, 4, 10)], until=3.0)
    assert driver.now == 3.0
    assert driver.num_tokens() == 3
    driver.run([])
    assert driver.num_tokens() == 10


def test_a_refused_request_is_kept_with_its_error() -> None:
    driver = VirtualEngine(virtual_scheduler(1, 64), CPU_LIKE)
    driver.run([virtual_request(0, 0.0, 9000, 1)])
    assert driver.served[0].refused is not None
