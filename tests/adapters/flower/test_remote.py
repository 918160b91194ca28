"""A fleet by the address of a service, or in a database, trains like one in a file."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("uvicorn", reason="a service needs it")

from adapters.flower.in_process import Clock, InProcessGrid, Spy, fair_selection, named_nodes, open_to_all, train
from adapters.flower.killable_app import FLEET, Killed, as_dict, play_on
from adapters.flower.test_documents import block_with
from cli.processes import running
from live.fleets import packed_from_disk, turns_in
from postgres import Cluster
from service.served import SLOTS, Service, served
from turnout.adapters.flower import FairSelection
from turnout.client import FleetClient, RefusedError
from turnout.errors import SettingError
from turnout.live import FleetReader, Scheduler

pytestmark = pytest.mark.files
#: Only a fleet in this process tells it.
LOCAL = "turnout-fewest-turns"
CRASHING: dict[str, Any] = {"settings": {"cohort_size": 3, "guaranteed_rate": 0.3}, "deadline": 10.0}


def address_of(service: Service, fleet: str = "fleet") -> str:
    return f"http://127.0.0.1:{service.port}/v1/fleets/{fleet}"


def plain(result: Any) -> dict[str, Any]:
    """Returns a result without what a service does not tell."""
    data = as_dict(result)
    for metrics in data["train"].values():
        metrics.pop(LOCAL, None)
    return data


def assert_same_fleet(path: Path, reference: Path) -> None:
    assert turns_in(path) == turns_in(reference)
    with FleetReader(path) as fleet:
        if fleet.settings.has_rounds:  # otherwise, the state has times of the wall clock
            assert packed_from_disk(path) == packed_from_disk(reference)
    with FleetReader(path) as fleet, FleetReader(reference) as expected:
        own, other = fleet.certificate(), expected.certificate()
        assert own.to_dict(fleet.clients) == other.to_dict(expected.clients)


class Crash(Spy):
    """Interrupts the first server in its seventh aggregation."""

    has_crashed: ClassVar[bool] = False

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if server_round == 7 and not Crash.has_crashed:
            Crash.has_crashed = True
            raise Killed
        return super().aggregate_train(server_round, replies)


def crash_and_resume(fleet: Any, **settings: Any) -> tuple[Any, Any]:
    """Trains with clients that fail or are late, on a server that is interrupted in a round and started again."""
    grid, again = (InProcessGrid(named_nodes(9, [1.0, 2.0, 3.0, 4.0, 25.0, 1.5, 2.5, 3.5, 1.25])) for _ in range(2))
    for each in (grid, again):
        each.client("c1").trouble = "raises"
        each.client("c3").trouble = "silent"
    Crash.has_crashed = False
    with pytest.raises(Killed):
        train(fleet, grid, Crash(), rounds=14, **settings)
    result = train(fleet, again, Crash(), rounds=14, **settings)
    return (grid.asked("train"), again.asked("train")), plain(result)


@pytest.mark.usefixtures("clock")
def test_measured_rounds_failures_and_a_restart_give_the_same_cohorts_and_certificate(folder: Path) -> None:
    reference, path = folder / "reference.turnout", folder / "fleet.turnout"
    with Scheduler.open(reference, **CRASHING) as scheduler:
        expected = crash_and_resume(scheduler)
    Scheduler.open(path, **CRASHING).close()
    with running("serve", path, "--no-tokens") as (_, port, _):
        by_address = crash_and_resume(f"http://127.0.0.1:{port}/v1/fleets/fleet", save=folder / "job")
    assert by_address == expected
    assert {kind for *_, kind, _, _, _, _, _ in turns_in(path)} >= {"arrived", "failed", "late"}
    assert_same_fleet(path, reference)


def test_another_service_takes_over_in_the_middle_of_a_round_and_nothing_is_doubled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = folder / "reference.turnout"
    with Scheduler.open(reference, **FLEET) as scheduler:
        expected = plain(play_on(scheduler, open_to_all()))
    with ExitStack() as first, ExitStack() as second, socket.socket() as later:
        later.bind(("127.0.0.1", 0))  # nothing listens there before the first service has ended
        service = first.enter_context(served(folder, {"fleet": FLEET}))
        addresses = f"{address_of(service)},http://127.0.0.1:{later.getsockname()[1]}/v1/fleets/fleet"
        monkeypatch.setenv("TURNOUT_TOKEN", service.tokens["fleet"]["server"])
        interrupted: list[int] = []

        def checkpoint() -> None:
            opened = None if interrupted else service.ok("/round")["open"]
            if opened is not None and opened["round"] == 3:
                interrupted.append(opened["round"])
                first.close()
                second.enter_context(served(folder, {"fleet": FLEET}, bound=later))

        result = play_on(addresses, open_to_all(), checkpoint=checkpoint, save=folder / "job")
    assert interrupted == [3]
    assert plain(result) == expected
    assert_same_fleet(folder / "fleet.turnout", reference)


def test_turns_without_rounds_are_the_same(folder: Path) -> None:
    reference, slots = folder / "reference.turnout", {**SLOTS, "deadline": None}
    with Scheduler.open(reference, **slots) as scheduler:
        expected = plain(play_on(scheduler, open_to_all()))
    with served(folder, {"fleet": slots}) as service:
        token = service.tokens["fleet"]["server"]
        result = play_on(address_of(service), open_to_all(), token=token, save=folder / "job")
    assert plain(result) == expected
    assert_same_fleet(folder / "fleet.turnout", reference)


def test_what_does_not_work_by_address_is_refused_with_a_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder, {"fleet": FLEET}) as service:
        tokens, address = service.tokens["fleet"], address_of(service)
        with pytest.raises(SettingError, match=f'{address} has no file .* pass save="/srv/run"'):
            FairSelection(open_to_all(), address, token=tokens["server"])
        fair = FairSelection(open_to_all(), address, token=tokens["server"], save=False, tracker="jsonl:metrics")
        with pytest.raises(SettingError, match=f"leave it out, and read the metrics of {address} from the service"):
            fair.start(InProcessGrid(), None)  # type: ignore[arg-type]
        with pytest.raises(RefusedError, match="unknown, revoked or expired") as refused:
            FairSelection(open_to_all(), address, token="turnout_0_0", save=False)
        assert refused.value.status == 401
        with pytest.raises(RefusedError, match="there is no fleet 'other' for this token"):
            FairSelection(open_to_all(), address_of(service, "other"), token=tokens["server"], save=False)
        with FleetClient(address, token=tokens["viewer"]) as client:
            viewing = fair_selection(open_to_all(), client, save=False, poll=0.01)
            with pytest.raises(RefusedError, match="the role viewer does not allow this"):
                viewing.start(InProcessGrid(named_nodes(2)), None)  # type: ignore[arg-type]
        monkeypatch.setenv("TURNOUT_TOKEN", tokens["server"])
        code = block_with("https://turnout.example", "docs/flower.md").replace(
            "https://turnout.example/v1/fleets/phones", address
        )
        names: dict[str, Any] = {"FairSelection": FairSelection, "strategy": open_to_all()}
        exec(code.replace("/srv/", f"{folder}/"), names)
        assert names["fair"].scheduler.settings.deadline == FLEET["deadline"]
    with (
        Scheduler.open(folder / "own.turnout", **FLEET) as scheduler,
        pytest.raises(SettingError, match="leave it out"),
    ):
        FairSelection(open_to_all(), scheduler, token="turnout_0_0")
    with pytest.raises(
        SettingError, match=r"got '/srv/fleet\.turnout': open a file or a database with Scheduler\.open"
    ):
        FairSelection(open_to_all(), "/srv/fleet.turnout")
    for open_ in (Scheduler.open, FleetReader):
        with pytest.raises(SettingError, match="is the address of a service: name a file"):
            open_("https://turnout.example/v1/fleets/phones")


@pytest.mark.usefixtures("clock")
def test_a_fleet_in_a_database_trains_and_resumes(folder: Path, cluster: Cluster, clock: Clock) -> None:
    address = cluster.address("flower")
    with Scheduler.open(address, **CRASHING) as scheduler:
        with pytest.raises(SettingError, match=r"postgresql://.* has no file next to which"):
            FairSelection(open_to_all(), scheduler)
        asked, _ = crash_and_resume(scheduler, save=str(folder / "job"))
        assert scheduler.round == 14
    with Scheduler.open(folder / "fleet.turnout", **CRASHING) as scheduler:
        assert crash_and_resume(scheduler)[0] == asked
    assert clock.now > 1000
