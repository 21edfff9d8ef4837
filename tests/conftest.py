import os

import pytest

# Before NumPy is loaded, for tests and the processes that they start. Small products on several threads mostly wait
# for each other: on two busy cores the oracle took up to sixty times as long for a sequence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--swarm-seeds", default="150", help="how many random worlds tests/core/test_swarm.py runs")
