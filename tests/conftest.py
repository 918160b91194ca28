from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings

from forking import ForkServer, fork_server
from postgres import FAST, VARIABLE, Cluster, running_cluster, use_schemas

# A busy machine is no reason for a verdict, and neither is luck: the examples are the same in every run.
hypothesis_settings.register_profile(
    "turnout", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
# For `make torture`: other examples in every run.
hypothesis_settings.register_profile(
    "search", parent=hypothesis_settings.get_profile("turnout"), derandomize=False, print_blob=True
)
# For `make mutants`: a failure is not made smaller first.
hypothesis_settings.register_profile(
    "mutants", parent=hypothesis_settings.get_profile("turnout"), phases=[Phase.explicit, Phase.generate]
)
hypothesis_settings.load_profile("turnout")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-traces",
        action="store_true",
        help="overwrite the recorded selections of all policies with the present ones; review the diff afterwards",
    )
    parser.addoption(
        "--store",
        choices=("file", "postgres"),
        default="file",
        help="where fleets are, of which tests know the paths: in files, or in schemas of a temporary cluster",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips the tests about files if there are none."""
    if config.getoption("--store") == "postgres":
        for item in items:
            if item.get_closest_marker("files"):
                item.add_marker(pytest.mark.skip(reason="this test is about files"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Returns a running PostgreSQL server, which all tests of this process share."""
    with running_cluster(FAST) as cluster:
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def _store(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes paths of fleets stand for schemas of a cluster, with `--store postgres`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--store") == "postgres":
            cluster: Cluster = request.getfixturevalue("cluster")
            patch.setenv(VARIABLE, str(cluster.folder))
            use_schemas(patch)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Returns a folder in memory if possible: it is fast, and its files survive a killed process as on a disk."""
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=shared_memory) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Returns a server that runs programs in forks."""
    with fork_server() as server:
        yield server


#: What most programs of the documentation and of `examples/` import.
COMMON = ("turnout.live", "turnout.lab")


@pytest.fixture(scope="session")
def common_forks() -> Iterator[ForkServer]:
    """Returns a server whose forks have imported what most programs import."""
    with fork_server(*COMMON) as server:
        yield server


@pytest.fixture(scope="session")
def torch_forks() -> Iterator[ForkServer]:
    """Returns a server whose forks have also imported torch."""
    with fork_server(*COMMON, *(["torch"] if find_spec("torch") else [])) as server:
        yield server
