import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--swarm-seeds", default="150", help="how many random worlds tests/core/test_swarm.py runs")
