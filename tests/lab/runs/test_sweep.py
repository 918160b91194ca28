"""Runs that are swept into a store; workers that die, and sweeps that are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from killing import environment
from lab.runs.keepsakes import Stop, assert_holds, stop_after
from narrowing import known
from turnout import POLICIES
from turnout.errors import ClusterError, SettingError, StoreError
from turnout.lab import RoundColumns, RunPlan, RunStore, play_into, play_plan, sweep
from turnout.lab.runs.sweep import JoblibExecutor, ignored_interrupts, missing_plans, run_id
from waiting import wait_until


def die(folder: Path) -> None:
    """Ends the process without a result."""
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("repeats", [0, 1])
def test_a_task_whose_workers_always_die_starts_again_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    monkeypatch.setattr("turnout.lab.runs.sweep.MAX_REPEATS", repeats)
    with pytest.raises(ClusterError, match=f"worker processes died {repeats + 1} times in a row, and no run was"):
        list(JoblibExecutor(2).run(die, [tmp_path]))
    assert len(list(tmp_path.iterdir())) == repeats + 1


@pytest.mark.framework
def test_a_sweep_runs_on_a_cluster_of_dask_and_a_killed_worker_makes_no_difference(store: RunStore) -> None:
    import joblib
    from distributed import Client

    training = RunPlan("random", 6, world="training", world_settings={"items": 20, "hidden": 4})
    plans = [*PLANS, *(RunPlan("rbcsf", 3000, seed) for seed in range(3)), training]

    def kill_a_worker() -> None:
        processing = wait_until(lambda: {name: tasks for name, tasks in client.processing().items() if tasks}, "a run")
        os.kill(client.run(os.getpid, workers=[next(iter(processing))])[next(iter(processing))], signal.SIGKILL)

    # Dask warns about the worker that is killed.
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as client:
        killing = threading.Thread(target=kill_a_worker)
        killing.start()
        with joblib.parallel_config("dask"):
            ids = sweep(plans, store)
        killing.join()
    for plan, run in zip(plans, ids, strict=True):
        assert store.columns(run).to_bytes() == play_plan(plan).to_bytes()


def test_interrupts_are_ignored_in_the_main_thread_only() -> None:
    def read() -> None:
        with ignored_interrupts():
            result.append(signal.getsignal(signal.SIGINT))

    result: list[object] = []
    before = signal.getsignal(signal.SIGINT)
    other = threading.Thread(target=read)
    other.start()
    other.join()
    read()
    assert result == [before, signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before


PLANS = [
    RunPlan("rbcsf", 12, 1, {"speed_weight": 20}),
    RunPlan("random", 30, 2),
    RunPlan("fedcs", 5, 3),
    RunPlan("rbcsf", 20, 1, world_settings={"availability": {"kind": "markov", "share": 0.8, "persistence": 5}}),
]


def assert_runs_are_right(store: RunStore, undisturbed: dict[str, bytes]) -> int:
    """Asserts that every run equals the undisturbed one as far as it is stored; returns the number of finished ones."""
    for run in store.runs():
        whole = list(RoundColumns.from_bytes(undisturbed[run.key]).records())
        assert list(store.columns(run.id).records()) == (whole if run.finished else whole[: run.rounds])
        saved = store.snapshot(run.id)
        assert saved is None or saved[0] == run.rounds
    return sum(run.finished for run in store.runs())


# One plan in memory.


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_keeping_choices_stores_only_the_selections_and_their_times(name: str) -> None:
    plan = RunPlan(name, 15, 4)
    every, choices = play_plan(plan), play_plan(replace(plan, keep="choices"))
    for kept in ("rounds", "starts", "chosen", "exchange_times", "durations", "turns"):
        np.testing.assert_array_equal(getattr(choices, kept), getattr(every, kept))
    assert choices.contexts.shape == (len(every.chosen), 0)
    assert choices.available is None
    assert not choices.client_reasons
    assert not choices.cohort_reasons
    assert len(choices.to_bytes()) < len(every.to_bytes()) / 2
    assert len(list(choices.records())) == 15


# One plan into a store, in parts.


WORLDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "markov": {"availability": {"kind": "markov", "share": 0.8, "persistence": 7}},
    "participants": {"cold_start": "participants"},
}


SMALL = {"items": 20, "hidden": 4, "world": {"clients": 20}}
OTHER_PLANS = {
    "traces": RunPlan("rbcsf", 24, 3, {"accrual": "available"}, "traces", {"clients": 20}),
    "traces and rounds": RunPlan("random", 24, 3, world="traces", world_settings={"clients": 20, "clock": "rounds"}),
    "training": RunPlan("random", 24, 9, {"cohort_size": 4}, "training", SMALL),
    "turns": RunPlan(
        "fair-pace", 24, 9, {"tolerance": 1.0}, "training", {**SMALL, "updates_per_version": 4}, concurrency=6
    ),
    "slots": RunPlan("fair-pace", 24, 5, {"tolerance": 1.0}, concurrency=8),
    "choices": RunPlan("rbcsf", 24, keep="choices"),
}
STOPS = {"stopped once": [1], "stopped twice": [3, 1]}
#: Every policy, every world and every pair of a world and stops is also played in `make test`.
RESUMED = [
    pytest.param(
        RunPlan(policy, 24, 9, world_settings=WORLDS[world]),
        stops,
        marks=[] if policy == "rbcsf" or (position + turn) % 8 == 0 else pytest.mark.thorough,
        id=f"{policy}-{world}-{kind}",
    )
    for position, policy in enumerate(sorted(POLICIES))
    for turn, (world, (kind, stops)) in enumerate(product(sorted(WORLDS), STOPS.items()))
] + [pytest.param(plan, STOPS["stopped twice"], id=name) for name, plan in OTHER_PLANS.items()]


@pytest.mark.parametrize(("plan", "stops"), RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, plan: RunPlan, stops: list[int]) -> None:
    for chunks in stops:
        with RunStore(tmp_path / "runs.db") as store, pytest.raises(Stop):
            play_into(store, plan, every=5, watch=stop_after(chunks))
    with RunStore(tmp_path / "runs.db") as store:
        info = known(store.find(plan.key))
        assert (info.rounds, info.finished) == (5 * sum(stops), False)
        progress: list[int] = []
        assert play_into(store, plan, every=5, watch=progress.append) == info.id
        assert progress == [*range(5 * sum(stops) + 5, 24, 5), 24]
        assert_holds(store, plan)


def test_a_run_can_be_resumed_with_another_transaction_size_and_under_another_label(store: RunStore) -> None:
    plan = replace(PLANS[0], rounds=60)
    for every, chunks in ((1, 4), (13, 1), (2, 3)):
        with pytest.raises(Stop):
            play_into(store, replace(plan, label=f"every {every}"), every=every, watch=stop_after(chunks))
    run = play_into(store, replace(plan, label="last name"), every=1000)
    assert_holds(store, plan)
    assert [(stored.id, stored.plan["label"]) for stored in store.runs()] == [(run, "every 1")]


def test_a_finished_run_is_not_played_again(store: RunStore) -> None:
    with pytest.raises(Stop):
        play_into(store, PLANS[0], every=6, watch=stop_after(2))  # after its last round
    run = play_into(store, PLANS[0], watch=stop_after(1))
    assert play_into(store, PLANS[0], every=1, watch=stop_after(1)) == run
    assert len(store.runs()) == 1
    assert_holds(store, PLANS[0])


# Many plans.


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_stores_the_same_run_as_playing_each_plan_alone(store: RunStore, workers: int) -> None:
    watched: dict[str, bytes] = {}
    ids = sweep(
        PLANS, store, workers=workers, watch=lambda plan, columns: watched.update({plan.key: columns.to_bytes()})
    )
    assert watched == {info.key: store.columns(info.id).to_bytes() for info in store.runs()}
    for run, plan in zip(ids, PLANS, strict=True):
        info = known(store.find(plan.key))
        assert info.id == run
        assert RunPlan.from_dict(info.plan) == plan
        assert_holds(store, plan)


@pytest.mark.parametrize("workers", [1, 2])
def test_duplicate_plans_are_played_once(store: RunStore, workers: int) -> None:
    first, second = PLANS[:2]
    watched: list[str] = []
    ids = sweep(
        [second, first, replace(second, label="again"), first],
        store,
        workers=workers,
        watch=lambda plan, _: watched.append(plan.key),
    )
    assert sorted(watched) == sorted([first.key, second.key])
    assert len(store.runs()) == 2
    assert ids[0] == ids[2] != ids[1] == ids[3]
    assert_holds(store, first)


def test_stored_runs_are_not_played_again(store: RunStore) -> None:
    before = sweep(PLANS[1:3], store, workers=1)
    assert [plan.key for plan in missing_plans(PLANS, store)] == [PLANS[0].key, PLANS[3].key]
    watched: list[str] = []
    ids = sweep(PLANS, store, workers=1, watch=lambda plan, _: watched.append(plan.key))
    assert watched == [PLANS[0].key, PLANS[3].key]
    assert ids[1:3] == before
    assert missing_plans(PLANS, store) == []
    assert sweep(PLANS, store, watch=stop_after(1)) == ids


def test_a_sweep_plays_what_it_is_given_and_nothing_else(store: RunStore) -> None:
    assert len(sweep((plan for plan in PLANS), store, workers=1)) == len(PLANS)
    assert sweep([], store) == []
    assert sweep(iter([]), store, workers=1) == []
    with pytest.raises(SettingError, match=r"the store holds no run of random \(key [0-9a-f]+\): play it first"):
        run_id(store, RunPlan("random", 3))


def test_a_sweep_replaces_an_unfinished_run(store: RunStore) -> None:
    with pytest.raises(Stop):
        play_into(store, replace(PLANS[0], label="half"), every=5, watch=stop_after(1))
    sweep([replace(PLANS[0], label="whole")], store)
    assert len(store.runs()) == 1
    assert_holds(store, PLANS[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_keeps_finished_runs_and_can_be_resumed(store: RunStore, workers: int) -> None:
    plans = [RunPlan("rbcsf", 20, seed) for seed in range(8)]
    with pytest.raises(KeyboardInterrupt):
        sweep(plans, store, workers=workers, watch=stop_after(3, KeyboardInterrupt))
    assert sum(run.finished for run in store.runs()) == 3
    done = [plan for plan in plans if store.find(plan.key) is not None]
    for plan in done:
        assert_holds(store, plan)
    watched: list[int] = []
    sweep(plans, store, workers=1, watch=lambda plan, _: watched.append(plan.seed))
    assert sorted(watched) == sorted({plan.seed for plan in plans} - {plan.seed for plan in done})
    for plan in plans:
        assert_holds(store, plan)


UNPLAYABLE = {
    r"the largest feasible rate is 0\.2": RunPlan("rbcsf", 1, settings={"guaranteed_rate": 0.5}),
    "did you mean 'rbcsf'": RunPlan("rbcs", 1),
}


@pytest.mark.parametrize(("workers", "messages"), [(1, list(UNPLAYABLE)), (2, list(UNPLAYABLE)[:1])])
def test_an_unplayable_plan_is_rejected_with_the_reason(store: RunStore, workers: int, messages: list[str]) -> None:
    for message in messages:
        with pytest.raises(SettingError, match=message):
            sweep([*PLANS, UNPLAYABLE[message]], store, workers=workers)
    sweep(PLANS, store, workers=1)
    for plan in PLANS:
        assert_holds(store, plan)


@pytest.mark.parametrize("number", [0, 1.5, -1])
def test_an_invalid_number_of_workers_or_transaction_size_is_rejected(store: RunStore, number: Any) -> None:
    with pytest.raises(SettingError, match="workers must be"):
        sweep(PLANS, store, workers=number)
    with pytest.raises(SettingError, match="every must be"):
        play_into(store, PLANS[0], every=number)


# Killed processes.


SWEEPING = """
import json, sys
from killing import Writes
from turnout.lab import RunPlan, RunStore, play_into, sweep
path, plans, workers, die_at = json.loads(sys.stdin.readline())
Writes(die_at, group=True)
plans = list(map(RunPlan.from_dict, plans))
with RunStore(path) as store:
    if workers:
        sweep(plans, store, workers=workers)
    for plan in plans:
        play_into(store, plan, every=5)
"""


def opened_after_a_kill(path: Path) -> RunStore:
    """Opens a store; the lock goes with the last process of the group, which may end a moment after its leader."""

    def opened() -> RunStore | None:
        try:
            return RunStore(path)
        except StoreError as refused:
            if "is being written by" not in str(refused):
                raise
            return None

    return known(wait_until(opened, "the lock of a killed writer is free"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kills", "rounds", "workers"),
    [
        pytest.param([3, 34, 54, 70], 10, (1, 2), id="sweeps"),
        pytest.param([2, 8, 23, 61, 150, 33], 10, (0,), id="runs in parts"),
        pytest.param([3, 34, 38, 42, 46, 54, 62, 70], 100, (1, 2), marks=pytest.mark.thorough, id="long sweeps"),
    ],
)
def test_runs_that_are_killed_at_any_moment_lose_nothing_that_was_stored(
    tmp_path: Path, kills: list[int], rounds: int, workers: tuple[int, ...]
) -> None:
    """With all its workers, before a write: as the file is created or opened, in the middle of a run, between runs."""
    path = tmp_path / "runs.db"
    names = sorted(POLICIES)
    plans = [RunPlan(names[seed % len(names)], rounds + rounds // 5 * (seed % 5), seed) for seed in range(70)]
    undisturbed = {plan.key: play_plan(plan).to_bytes() for plan in plans}
    held = [0]
    for attempt, die_at in enumerate(kills):
        ended = subprocess.run(
            [sys.executable, "-c", SWEEPING],
            input=json.dumps([str(path), [plan.as_dict() for plan in plans], workers[attempt % len(workers)], die_at])
            + "\n",
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=environment(),
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL
        with opened_after_a_kill(path) as store:
            held.append(assert_runs_are_right(store, undisturbed))
    assert held == sorted(held)
    assert 3 < held[-1] < len(plans)
    with RunStore(path) as store:
        played: list[str] = []
        sweep(plans, store, workers=1, watch=lambda plan, _: played.append(plan.key))
        assert len(played) == len(plans) - held[-1]
        for plan in plans:
            assert_holds(store, plan, whole=undisturbed[plan.key])
