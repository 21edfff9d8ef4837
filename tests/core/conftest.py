import pytest


@pytest.fixture
def swarm_seeds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--swarm-seeds"))
