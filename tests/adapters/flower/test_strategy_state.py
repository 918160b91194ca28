"""What a strategy keeps between rounds survives a restart, and what does not is named before the first round."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from adapters.flower.in_process import InProcessGrid, after, model, named_nodes, open_to_all, weights
from adapters.flower.killable_app import FLEET, Killed
from adapters.flower.test_resume import interrupt_after, resume_run
from turnout.adapters.flower import FairSelection
from turnout.errors import SettingError, StateError, TrainingError
from turnout.live import Scheduler

pytestmark = pytest.mark.usefixtures("clock")


def play(path: Path, strategy: Strategy, **settings: Any) -> list[float]:
    """Plays or resumes a run; returns the weights."""
    return weights(resume_run(path, strategy, **settings)[0].arrays)


class Rich(FedAvg):
    """Adds a number to the model that depends on everything that it keeps."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.by_round: dict[int, Any] = {}
        self.raw = b""
        self.function = partial(max, 1)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        arrays, metrics = super().aggregate_train(server_round, received)
        self.by_round[server_round] = {"replies": len(received), "nested": [{server_round: (1.5, None)}]}
        self.raw += bytes([server_round])
        self.history = [*getattr(self, "history", []), server_round]  # appears in the first round
        assert arrays is not None
        return model(weights(arrays)[0] + len(self.by_round) + sum(self.raw) + len(self.history)), metrics


@pytest.mark.parametrize("stop_after", [1, 4])
def test_everything_that_a_strategy_keeps_survives_a_restart(folder: Path, stop_after: int) -> None:
    whole, resumed = Rich(), Rich()
    expected = play(folder / "whole.turnout", whole)
    interrupt_after(folder / "fleet.turnout", stop_after, Rich())
    assert play(folder / "fleet.turnout", resumed) == expected
    for name in ("by_round", "raw", "history"):
        assert getattr(resumed, name) == getattr(whole, name)


def test_a_setting_that_was_corrected_is_used_after_a_restart(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    right: FedAvg = open_to_all(weighted_by_key="num-examples")
    with pytest.raises(TrainingError, match="start it again"):
        play(folder / "fleet.turnout", open_to_all(weighted_by_key="num_examples"))
    play(folder / "fleet.turnout", right)
    assert right.weighted_by_key == "num-examples"
    assert caplog.text.count("weighted_by_key is 'num-examples', and was 'num_examples' in the saved run") == 1


class Scheduled(FedAvg):
    """Has settings that are no plain numbers, and changes one of them itself."""

    def __init__(self, rates: tuple[float, ...], options: dict[str, Any], factor: Any) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.rates, self.options, self.factor = rates, options, factor
        self.seen, self.weights = list[int](), np.random.default_rng().normal(size=3)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.seen.append(server_round)
        self.factor = self.factor / 2
        return super().aggregate_train(server_round, replies)


def test_lists_and_numbers_of_numpy_can_be_corrected_too_and_all_else_is_restored(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Scheduled((0.1, 0.01), {"layers": [8, 8]}, np.float32(8.0))
    interrupt_after(folder / "fleet.turnout", 3, first)
    resumed = Scheduled((0.1, 0.02), {"layers": [8, 4]}, np.float32(8.0))
    play(folder / "fleet.turnout", resumed)
    assert (resumed.rates, resumed.options) == ((0.1, 0.02), {"layers": [8, 4]})
    assert (resumed.factor, resumed.seen) == (0.125, [1, 2, 3, 4, 5, 6])  # what the strategy changed itself
    assert resumed.weights.tolist() == first.weights.tolist()  # differs at every start, and is no setting
    assert "rates is (0.1, 0.02), and was (0.1, 0.01) in the saved run" in caplog.text
    assert "options is {'layers': [8, 4]}, and was {'layers': [8, 8]} in the saved run" in caplog.text
    assert caplog.text.count("in the saved run") == 2


def test_a_strategy_that_is_started_again_is_that_of_the_saved_run(folder: Path) -> None:
    """Its own changes since it was constructed are no settings."""
    strategy = Scheduled((0.1,), {}, 8.0)
    with Scheduler.open(folder / "fleet.turnout", **FLEET) as scheduler:
        fair, grid = FairSelection(strategy, scheduler), InProcessGrid(named_nodes(4))

        def stop() -> None:
            strategy.factor, strategy.seen = 77.0, [77]
            raise Killed

        with pytest.raises(Killed):
            fair.start(grid, model(1.0), num_rounds=4, evaluate_fn=after(2, stop))
        fair.start(grid, model(1.0), num_rounds=4)
    assert (strategy.factor, strategy.seen) == (0.5, [1, 2, 3, 4])


# What is not saved


class Careless(FedAvg):
    """Keeps what cannot be stored, from the start and from the third round on."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.lock = threading.Lock()
        self.window: deque[float] = deque(maxlen=3)
        self.kept = 5

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round == 3:
            self.event = threading.Event()
        return super().aggregate_train(server_round, replies)


def test_attributes_that_are_not_saved_are_named_at_the_start(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    play(folder / "fleet.turnout", Careless())
    lines = [record.getMessage() for record in caplog.records]
    named = [index for index, line in enumerate(lines) if "are not saved" in line]
    first_round = next(index for index, line in enumerate(lines) if line.startswith("[ROUND 1"))
    assert named[0] < first_round
    assert "these attributes of Careless are not saved" in lines[named[0]]
    assert "lock, window" in lines[named[0]]
    assert "state_dict()" in lines[named[0]]
    assert "kept" not in lines[named[0]]
    assert [("event" in lines[index], "lock" in lines[index]) for index in named] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("strategy", "settings", "named"),
    [
        (lambda: DifferentialPrivacyServerSideFixedClipping(Careless(), 0.0, 9.0, 2), {}, "strategy.lock"),
        (Careless, {"save": False}, None),
        (Rich, {}, None),
    ],
    ids=["inside another", "not saved at all", "saved completely"],
)
def test_only_what_is_not_saved_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture, strategy: Any, settings: dict[str, Any], named: str | None
) -> None:
    play(folder / "fleet.turnout", strategy(), **settings)
    assert ("not saved" in caplog.text) == (named is not None)
    assert named is None or named in caplog.text


# Hooks


class Hooked(FedAvg):
    """Saves and restores itself."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.lock, self.rounds, self.setting, self.kept = threading.Lock(), list[int](), "of this start", 1.0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.rounds.append(server_round)
        return super().aggregate_train(server_round, replies)

    def state_dict(self) -> dict[Any, Any]:
        return {"rounds": list(self.rounds), "kept": self.kept, 7: b"a number as a key"}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert state[7] == b"a number as a key"
        self.rounds, self.kept = list(state["rounds"]), state["kept"]


def test_a_strategy_with_state_dict_saves_and_restores_itself(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupt_after(folder / "fleet.turnout", 3, Hooked())
    resumed = Hooked()
    resumed.setting, resumed.kept = "of the second start", 0.5
    play(folder / "fleet.turnout", resumed)
    assert resumed.rounds == [1, 2, 3, 4, 5, 6]
    assert (resumed.setting, resumed.kept) == ("of the second start", 1.0)  # only state_dict counts
    assert caplog.text.count("load_state_dict() has replaced the new kept, which was 0.5") == 1
    assert "the new setting" not in caplog.text
    assert "not saved" not in caplog.text


def test_the_state_dict_of_a_strategy_inside_another_is_used(folder: Path) -> None:
    def wrap(inner: Hooked) -> Strategy:
        return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 9.0, 2)

    interrupt_after(folder / "fleet.turnout", 3, wrap(Hooked()))
    resumed = Hooked()
    play(folder / "fleet.turnout", wrap(resumed))
    assert resumed.rounds == [1, 2, 3, 4, 5, 6]


def test_a_state_that_cannot_be_stored_is_refused_before_the_first_round(folder: Path) -> None:
    class Wrong(Hooked):
        def state_dict(self) -> dict[Any, Any]:
            return {"locks": [self.lock]}

    with pytest.raises(StateError, match=r"state_dict\(\) of Wrong returns what cannot be stored, a _thread.lock"):
        play(folder / "fleet.turnout", Wrong())
    with Scheduler.open(folder / "fleet.turnout") as scheduler:
        assert scheduler.round == 0


def test_a_strategy_must_have_both_hooks_or_neither(folder: Path) -> None:
    class Half(FedAvg):
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError("is not called")

    with pytest.raises(SettingError, match=r"Half must have both state_dict.*got only state_dict"):
        play(folder / "fleet.turnout", open_to_all(Half))


@pytest.mark.parametrize("kinds", [(Hooked, open_to_all), (open_to_all, Hooked), (Rich, Careless)])
def test_a_run_is_not_resumed_with_another_strategy(folder: Path, kinds: tuple[Any, Any]) -> None:
    before, now = kinds
    interrupt_after(folder / "fleet.turnout", 3, before())
    with pytest.raises(StateError, match=r"the saved run had a .*construct the strategy as before, or start a new run"):
        play(folder / "fleet.turnout", now())
