"""A fleet by the address of a service, or in a database, is used by jobs like one in a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="a service needs it")

from adapters.nvflare.conftest import MakeJob
from adapters.nvflare.controllers import Averaging
from adapters.nvflare.in_process import Clock, Work, always, in_turn
from cli.processes import running
from live.fleets import packed_from_disk, turns_in
from postgres import Cluster
from service.served import ROUNDS, SLOTS, served
from turnout.adapters.nvflare.fleet import FleetPlan
from turnout.errors import SettingError
from turnout.live import PAPER_FEATURES, Feature, Features, FleetReader, Scheduler

pytestmark = [pytest.mark.files, pytest.mark.thorough]
GUARANTEE = {"guaranteed_rate": 0.2, "cohort_size": 2}
EDGE: dict[str, Any] = {"guaranteed_rate": "1/30"}
ADDRESS = "https://turnout.example/v1/fleets/phones"


def two_jobs(make_job: MakeJob, clock: Clock, selection: Any) -> list[list[float]]:
    """Runs a job that is aborted in a round after a client has reported, and one that continues the round."""
    saved, clock.now = [], 1000.0
    for rounds in (3, 6):
        failing = in_turn(Work(seconds=2), Work(answer="EXECUTION_EXCEPTION"))
        job = make_job(a=always(seconds=1), b=failing, c=always(seconds=25), d=always(seconds=3))
        job.clients["a"].status = {"free_cpu": 2.0, "bandwidth": 3.0}
        controller = Averaging(num_clients=2, num_rounds=rounds, selection=selection)
        if rounds == 3:
            job.after(4.5, job.abort)
        job.run(controller)
        saved.append(controller.saved)
    return saved


def test_aborts_failures_and_late_clients_are_the_same_by_address(
    make_job: MakeJob, clock: Clock, folder: Path
) -> None:
    reference, path = folder / "reference.turnout", folder / "fleet.turnout"
    expected = two_jobs(make_job, clock, {"fleet": str(reference), "guarantee": GUARANTEE, "deadline": 10})
    Scheduler.open(path, settings=GUARANTEE, deadline=10).close()
    with running("serve", path, "--no-tokens") as (_, port, _):
        assert two_jobs(make_job, clock, {"fleet": f"http://127.0.0.1:{port}/v1/fleets/fleet"}) == expected
    assert {turn[3] for turn in turns_in(path)} >= {"arrived", "failed", "late"}
    assert turns_in(path) == turns_in(reference)
    assert packed_from_disk(path) == packed_from_disk(reference)


@pytest.mark.skipif(importlib.util.find_spec("nvflare.edge") is None, reason="edge jobs need NVFlare 2.9")
def test_devices_get_the_same_turns_by_address(clock: Clock, folder: Path) -> None:
    from adapters.nvflare.test_edge import EdgeServer, close, phones
    from turnout.adapters.nvflare.edge import FairDeviceManager

    def turns(path: Path, selection: Any) -> list[tuple[Any, ...]]:
        edge = EdgeServer(clock, FairDeviceManager(3, selection), phones(8))
        edge.run(40)
        close(edge)
        return turns_in(path)

    reference, path = folder / "reference.turnout", folder / "fleet.turnout"
    expected = turns(reference, {"fleet": str(reference), "guarantee": EDGE, "model_size": 10.0})
    Scheduler.open(path, settings=EDGE, model_size=10.0, concurrency=3).close()
    with running("serve", path, "--no-tokens") as (_, port, _):
        assert turns(path, {"fleet": f"http://127.0.0.1:{port}/v1/fleets/fleet"}) == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deadline": 10, "guarantee": GUARANTEE}, "leave out deadline, guarantee$"),
        ({"tracker": "jsonl:/srv/metrics"}, "leave out tracker$"),
        ({"token": "turnout_0_0"}, "set TURNOUT_TOKEN in the environment of the server"),
    ],
)
def test_options_that_the_service_has_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        FleetPlan({"fleet": ADDRESS, **options}, PAPER_FEATURES)


def test_a_fleet_of_another_kind_or_other_features_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Features.of(Feature("battery", 0.0, 1.0, default=0.5))
    with served(folder, {"fleet": ROUNDS, "slots": SLOTS}) as service:
        for name, concurrency, features, problem in (
            ("slots", None, PAPER_FEATURES, "has concurrency=2, and this job needs None"),
            ("fleet", 3, PAPER_FEATURES, "has concurrency=None, and this job needs 3"),
            ("fleet", None, own, "has the features .*free_cpu.*, and this job has .*battery"),
        ):
            monkeypatch.setenv("TURNOUT_TOKEN", service.tokens[name]["server"])
            address = f"http://127.0.0.1:{service.port}/v1/fleets/{name}"
            with pytest.raises(SettingError, match=problem):
                FleetPlan({"fleet": address, "concurrency": concurrency}, features).open()


def test_a_job_uses_a_fleet_in_a_database(make_job: MakeJob, clock: Clock, folder: Path, cluster: Cluster) -> None:
    address, reference = cluster.address("nvflare"), folder / "reference.turnout"
    options = {"guarantee": GUARANTEE, "deadline": 10}
    in_file = two_jobs(make_job, clock, {"fleet": str(reference), **options})
    assert two_jobs(make_job, clock, {"fleet": str(address), **options}) == in_file
    with FleetReader(address) as fleet, FleetReader(reference) as expected:
        assert fleet.certificate().to_dict(fleet.clients) == expected.certificate().to_dict(expected.clients)
