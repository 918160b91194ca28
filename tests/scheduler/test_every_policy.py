"""Every policy and every wrapper behind a live scheduler: audit, explanation, forgetting and recovery."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.fleets import OpenFleet, named, offered, packed, packed_from_disk
from scheduler.killed_server import state_digest
from turnout import POLICIES, RBCSF
from turnout.errors import SettingError
from turnout.kernel.rounds import RoundOffer
from turnout.policies import WRAPPERS, make_policy
from turnout.policies.explain.explanation import explain_choice
from turnout.policies.registry import setting_names
from turnout.scheduler import Scheduler
from turnout.scheduler.audit.certify import certify
from turnout.scheduler.audit.doctor.doctor import examine
from turnout.scheduler.audit.verify import differences

CLIENTS = 6
#: Values that occur nowhere else, so that their bytes can be searched for.
MARKED_SECONDS, MARKED_LOSS, MARKED_CPU = 7.31058578630005, 0.731058579123, 1.731058571234

#: Settings with which each wrapper can be built around a policy of six clients.
WRAPPER_SETTINGS: dict[str, dict[str, Any]] = {
    "with-guarantee": {"guaranteed_rate": "1/6"},
    "overcommit": {"factor": 1.5},
    "eligible": {"allowed": [0, 1, 2, 3, 4]},
    "exclude-busy": {"rounds": 2},
    "cool-down": {"rounds": 1},
    "quota": {"least": 1, "groups": ["x", "y"] * 3},
    "warm-up": {"rounds": 2},
}
#: Policies that need the true expected times or refuse new clients cannot serve a live fleet.
NOT_LIVE = {"fastest", "fair-oracle", "skewed"}
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "fedcs": {"estimates": "learned", "deadline": 30.0},
    "tifl": {"cohort_size": 2, "tiers": 2, "profiling_rounds": 2, "retier_every": 2, "interval": 1},
    "oort": {"cohort_size": 2, "pacer_window": 2},
}


def live_policies() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every policy that can serve a live fleet, bare and inside every wrapper."""
    for name in POLICIES:
        if name in NOT_LIVE:
            continue
        own = {"cohort_size": 2, **OWN_SETTINGS.get(name, {})} if name != "fedcs" else OWN_SETTINGS[name]
        if "guaranteed_rate" in setting_names(name):
            own["guaranteed_rate"] = "1/6"
        yield name, own
        for wrapper, settings in WRAPPER_SETTINGS.items():
            if name == "fedcs" and wrapper in ("overcommit", "quota"):
                continue  # its cohort has no fixed size
            more = {"cohort_size": 2} if (name, wrapper) == ("fedcs", "warm-up") else {}
            yield wrapper, {"policy": name, "settings": own, **settings, **more}


LIVE_POLICIES = [
    pytest.param(name, settings, id=f"{name}-{settings['policy']}" if name in WRAPPERS else name)
    for name, settings in live_policies()
]


def play(scheduler: Scheduler, rounds: int, *, marked: str | None = None) -> None:
    """Plays rounds in which one client fails, one is late where there are three, and the others report."""
    for _ in range(rounds):
        statuses = offered(*named(CLIENTS))
        if marked is not None:
            statuses[marked] = type(statuses[marked])(MARKED_CPU, 2.0)
        chosen = scheduler.choose(statuses)
        for position, client in enumerate(chosen):
            if position == 0 and client != marked:
                scheduler.report_failure(client, "battery")
            elif client == marked:
                scheduler.report(client, MARKED_SECONDS, loss=MARKED_LOSS)
            else:
                scheduler.report(client, 1.0 + int(client[1:]), loss=0.5)
        scheduler.close_round()


@pytest.fixture(scope="module")
def killed_server() -> Iterator[Any]:
    """A process that plays rounds in children that kill themselves."""
    command = [sys.executable, str(Path(__file__).with_name("killed_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


def problems(path: Path) -> list[str]:
    return [f"{finding.part}: {finding.words}" for finding in examine(path) if finding.sound is False]


# The four wrong behaviours that guessing at capabilities produced


def test_doctor_finds_nothing_wrong_with_a_guarantee_around_random(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(policy="with-guarantee", settings={"policy": "random", "settings": {"cohort_size": 2}})
    play(scheduler, 8)
    assert problems(folder / "fleet.turnout") == []


@pytest.mark.parametrize(
    ("policy", "settings"),
    [("oort", {"cohort_size": 2}), ("rbcsf", {"cohort_size": 2, "change_threshold": 8.0, "guaranteed_rate": "1/6"})],
)
def test_a_snapshot_holds_nothing_that_a_forgotten_client_reported(
    open_fleet: OpenFleet, policy: str, settings: dict[str, Any]
) -> None:
    scheduler = open_fleet(policy=policy, settings=settings)
    play(scheduler, 12, marked="c1")
    before = _numbers(scheduler)
    assert _contains(before, MARKED_SECONDS) or policy == "rbcsf"
    scheduler.forget("c1")
    after = _numbers(scheduler)
    assert not _contains(after, MARKED_SECONDS)
    assert not _contains(after, MARKED_LOSS)
    if policy == "rbcsf":
        assert not scheduler.state()["policy.changes.sums"][:, 1].any()


def test_the_debt_cap_of_a_wrapped_policy_follows_its_own_speed_weight(open_fleet: OpenFleet) -> None:
    inner = {"cohort_size": 2, "speed_weight": 200.0}
    scheduler = open_fleet(policy="cool-down", settings={"policy": "rbcsf", "settings": inner}, deadline=None)
    scheduler.register(named(CLIENTS))
    debts = scheduler.policy.debts
    assert debts is not None
    assert debts.max_owed == 12_010


class _OwnRBCSF(RBCSF):
    """A user's subclass that changes nothing."""

    name = "own-rbcsf"


@pytest.mark.parametrize("kind", ["subclass", "wrapper"])
def test_a_subclass_of_rbcsf_and_a_wrapper_around_it_are_explained_exactly(kind: str) -> None:
    settings: dict[str, Any] = {"cohort_size": 2, "guaranteed_rate": 0.25}
    policy = (
        _OwnRBCSF(CLIENTS, **settings)
        if kind == "subclass"
        else make_policy("cool-down", CLIENTS, policy="rbcsf", settings=settings)
    )
    offer = RoundOffer(1, np.ones(CLIENTS, dtype=bool), np.ones((CLIENTS, 3)))
    selection = policy.ask(offer)
    for row in range(CLIENTS):
        found = explain_choice(policy, offer, selection, row)
        assert found.exact, found.sentence
        assert "weigh" not in found.sentence


# Every policy, bare and in every wrapper


@pytest.mark.parametrize(("policy", "settings"), LIVE_POLICIES)
def test_a_healthy_fleet_passes_every_audit(
    open_fleet: OpenFleet, folder: Path, policy: str, settings: dict[str, Any]
) -> None:
    scheduler = open_fleet(policy=policy, settings=settings)
    play(scheduler, 6)
    path = folder / "fleet.turnout"
    assert problems(path) == []
    for client in named(CLIENTS):
        for round_ in (1, 6):
            assert scheduler.explain(client, round_).sentence
    if not scheduler.has_guarantee:
        with pytest.raises(SettingError, match="guarantees nothing"):
            certify(path, folder / "certificate.json", folder / "record.jsonl")
        return
    assert int(scheduler.certificate().turns.sum()) > 0
    if policy in ("eligible", "exclude-busy"):
        return  # a wrapper that decides who earns: the record alone does not show it
    certify(path, folder / "certificate.json", folder / "record.jsonl")
    with (folder / "record.jsonl").open("rb") as lines:
        assert differences((folder / "certificate.json").read_bytes(), lines) == []


@pytest.mark.parametrize(("policy", "settings"), LIVE_POLICIES)
def test_forgetting_a_client_leaves_no_report_of_it_in_the_state(
    open_fleet: OpenFleet, folder: Path, policy: str, settings: dict[str, Any]
) -> None:
    scheduler = open_fleet(policy=policy, settings=settings)
    play(scheduler, 8, marked="c1")
    scheduler.forget("c1")
    state = _numbers(scheduler)
    for value in (MARKED_SECONDS, MARKED_LOSS, 1 / MARKED_CPU):
        assert not _contains(state, value)
    assert packed(scheduler) == packed_from_disk(folder / "fleet.turnout")
    play_on(scheduler, 3)
    assert problems(folder / "fleet.turnout") == []


def play_on(scheduler: Scheduler, rounds: int) -> None:
    """Plays rounds with the clients that are left."""
    for _ in range(rounds):
        chosen = scheduler.choose(offered(*(client for client in named(CLIENTS) if client != "c1")))
        assert "c1" not in chosen
        scheduler.report_many(dict.fromkeys(chosen, 2.0))
        scheduler.close_round()


@pytest.mark.parametrize(("policy", "settings"), LIVE_POLICIES)
def test_a_killed_scheduler_is_reopened_with_the_state_it_had(
    killed_server: Any, folder: Path, policy: str, settings: dict[str, Any]
) -> None:
    path = folder / "fleet.turnout"
    killed_server.stdin.write(json.dumps({"path": str(path), "policy": policy, "settings": settings}) + "\n")
    killed_server.stdin.flush()
    answer = json.loads(killed_server.stdout.readline())
    assert answer["signal"] == signal.SIGKILL
    with Scheduler.open(path) as scheduler:
        assert state_digest(scheduler) == answer["digest"]
        scheduler.report_many({turn.id: 1.0 for turn in scheduler.turns()})
        scheduler.close_round()
    assert problems(path) == []


def _numbers(scheduler: Scheduler) -> list[np.ndarray[Any, Any]]:
    """Every number of the state, as flat arrays."""
    return [
        np.asarray(value, dtype=np.float64).ravel()
        for value in scheduler.state().values()
        if np.asarray(value).dtype.kind in "biuf"
    ]


def _contains(arrays: list[np.ndarray[Any, Any]], value: float) -> bool:
    return any(bool((np.abs(array - value) <= 1e-12 * abs(value)).any()) for array in arrays)
