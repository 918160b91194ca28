"""Every stock strategy: only the cohort trains, all clients evaluate, and the aggregation is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.serverapp import strategy as stock
from flwr.serverapp.strategy import Strategy

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    InProcessGrid,
    examples_of,
    loss_of,
    model,
    named_nodes,
    open_to_all,
    step_of,
    turns_of,
    weights,
)
from turnout.adapters.flower import FairSelection
from turnout.errors import SettingError

CLIENTS, COHORT, ROUNDS = 7, 3, 5
START = (1.0, -2.0, 0.5)
Vector = npt.NDArray[np.float64]


@dataclass
class RoundInput:
    """The input of a strategy in one round, and the state that it keeps between rounds."""

    round: int
    model: Vector
    replies: list[Vector]
    examples: Vector
    losses: Vector
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> Vector:
        return average(self.replies, self.examples)


def average(replies: list[Vector], examples: Vector) -> Vector:
    """Returns the mean of the replies, weighted by examples."""
    means: Vector = np.average(np.stack(replies), axis=0, weights=examples)
    return means


# Each strategy's aggregation rule, reimplemented from its paper


def momentum(inputs: RoundInput) -> Vector:
    gradient = inputs.model - inputs.mean
    before: Vector = inputs.state.get("m", np.zeros_like(gradient))
    inputs.state["m"] = now = 0.9 * before + gradient
    return inputs.model - 0.5 * now


def adaptive(kind: str) -> Callable[[RoundInput], Vector]:
    def rule(inputs: RoundInput) -> Vector:
        beta_1, beta_2 = (0.0, 0.0) if kind == "adagrad" else (0.9, 0.99)
        delta = inputs.mean - inputs.model
        m = inputs.state["m"] = beta_1 * inputs.state.get("m", 0.0) + (1 - beta_1) * delta
        v = inputs.state.get("v", np.zeros_like(delta))
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "adam":
            v = beta_2 * v + (1 - beta_2) * delta**2
        else:
            v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
        inputs.state["v"] = v
        rate = 0.1
        if kind == "adam":
            rate *= np.sqrt(1 - beta_2 ** (inputs.round + 1)) / (1 - beta_1 ** (inputs.round + 1))
        moved: Vector = inputs.model + rate * m / (np.sqrt(v) + 1e-3)
        return moved

    return rule


def trimmed(inputs: RoundInput) -> Vector:
    middle: Vector = np.sort(np.stack(inputs.replies), axis=0)[1:-1].mean(axis=0)
    return middle


def krum(selected: int) -> Callable[[RoundInput], Vector]:
    def rule(inputs: RoundInput) -> Vector:
        distances = [
            sorted(float(np.sum((reply - other) ** 2)) for other in inputs.replies) for reply in inputs.replies
        ]
        scores = [sum(row[1 : 1 + max(1, len(inputs.replies) - 2)]) for row in distances]
        best = np.argsort(scores, kind="stable")[:selected]
        return average([inputs.replies[index] for index in best], inputs.examples[best])

    return rule


def q_fair(inputs: RoundInput) -> Vector:
    q, lipschitz = 0.1, 10.0
    moves, curves = [], []
    for reply, loss in zip(inputs.replies, inputs.losses + 1e-10, strict=True):
        gradient = lipschitz * (inputs.model - reply)
        moves.append(loss**q * gradient)
        curves.append(q * loss ** (q - 1) * np.sum(gradient**2) + lipschitz * loss**q)
    moved: Vector = inputs.model - np.sum(moves, axis=0) / np.sum(curves)
    return moved


def clipped(norm: float) -> Callable[[RoundInput], Vector]:
    def rule(inputs: RoundInput) -> Vector:
        updates = [reply - inputs.model for reply in inputs.replies]
        short = [inputs.model + update * min(1.0, norm / float(np.linalg.norm(update))) for update in updates]
        return average(short, inputs.examples)

    return rule


def adaptively_clipped(inputs: RoundInput) -> Vector:
    norm = inputs.state.get("norm", 6.0)
    beyond = np.mean([np.linalg.norm(reply - inputs.model) > norm for reply in inputs.replies])
    inputs.state["norm"] = norm * np.exp(-0.2 * (beyond - 0.5))
    return clipped(norm)(inputs)


def mean(inputs: RoundInput) -> Vector:
    return inputs.mean


def median(inputs: RoundInput) -> Vector:
    middle: Vector = np.median(np.stack(inputs.replies), axis=0)
    return middle


def plain_mean(inputs: RoundInput) -> Vector:
    return average(inputs.replies, np.ones(len(inputs.replies)))


def private(kind: str, **settings: Any) -> Strategy:
    wrapper: Callable[..., Strategy] = getattr(stock, f"DifferentialPrivacy{kind}Clipping")
    return wrapper(open_to_all(), noise_multiplier=0.0, num_sampled_clients=COHORT, **settings)


Case = tuple[Callable[[], Strategy], Callable[[RoundInput], Vector]]
STOCK: dict[str, Case] = {
    "FedAvg": (open_to_all, mean),
    "FedProx": (lambda: open_to_all(stock.FedProx, proximal_mu=0.1), mean),
    "FedAvgM": (lambda: open_to_all(stock.FedAvgM, server_learning_rate=0.5, server_momentum=0.9), momentum),
    "FedAdam": (lambda: open_to_all(stock.FedAdam), adaptive("adam")),
    "FedAdagrad": (lambda: open_to_all(stock.FedAdagrad), adaptive("adagrad")),
    "FedYogi": (lambda: open_to_all(stock.FedYogi, eta=0.1), adaptive("yogi")),
    "FedMedian": (lambda: open_to_all(stock.FedMedian), median),
    "FedTrimmedAvg": (lambda: open_to_all(stock.FedTrimmedAvg, beta=0.4), trimmed),
    "Krum": (lambda: open_to_all(stock.Krum), krum(1)),
    "MultiKrum": (lambda: open_to_all(stock.MultiKrum, num_nodes_to_select=2), krum(2)),
    "Bulyan": (lambda: open_to_all(stock.Bulyan), plain_mean),
    "QFedAvg": (lambda: open_to_all(stock.QFedAvg, client_learning_rate=0.1), q_fair),
    "server, fixed": (lambda: private("ServerSideFixed", clipping_norm=4.0), clipped(4.0)),
    "client, fixed": (lambda: private("ClientSideFixed", clipping_norm=4.0), mean),
    "server, adaptive": (
        lambda: private("ServerSideAdaptive", initial_clipping_norm=6.0, clipped_count_stddev=0.0),
        adaptively_clipped,
    ),
    "client, adaptive": (lambda: private("ClientSideAdaptive", clipped_count_stddev=0.0), mean),
}


@pytest.mark.parametrize("name", STOCK)
def test_only_the_cohort_trains_all_clients_evaluate_and_the_strategy_aggregates(
    open_fleet: OpenFleet, name: str
) -> None:
    build, rule = STOCK[name]
    scheduler = open_fleet(settings={"cohort_size": COHORT, "guaranteed_rate": 0.2}, deadline=1000.0)
    grid = InProcessGrid(named_nodes(CLIENTS, 0.0))
    result = FairSelection(build(), scheduler, poll=0.001).start(grid, model(*START), num_rounds=ROUNDS)
    trained = grid.asked("train")
    all_clients = sorted(f"c{row}" for row in range(CLIENTS))
    assert trained == [sorted(turn.id for turn in scheduler.history(round=number)) for number in range(1, ROUNDS + 1)]
    assert all(len(cohort) == COHORT for cohort in trained)
    assert grid.asked("evaluate") == [all_clients] * ROUNDS
    assert sum(turns_of(scheduler).values()) == COHORT * ROUNDS
    assert weights(result.arrays) == pytest.approx(list(apply_rule(rule, trained)), rel=1e-12)
    assert list(result.evaluate_metrics_clientapp) == list(range(1, ROUNDS + 1))


def apply_rule(rule: Callable[[RoundInput], Vector], trained: list[list[str]]) -> Vector:
    """Applies the rule to the same replies in all rounds and returns the final model."""
    weights, state = np.array(START), dict[str, Any]()
    for server_round, cohort in enumerate(trained, start=1):
        numbers = [int(client[1:]) for client in cohort]
        replies = [weights + step_of(number, server_round) for number in numbers]
        examples = np.array([float(examples_of(number)) for number in numbers])
        losses = np.array([loss_of(number) for number in numbers])
        weights = rule(RoundInput(server_round, weights, replies, examples, losses, state))
    return weights


def test_differential_privacy_adds_its_noise(open_fleet: OpenFleet) -> None:
    strategy = stock.DifferentialPrivacyServerSideFixedClipping(open_to_all(), 1.0, 4.0, COHORT)
    scheduler = open_fleet(settings={"cohort_size": COHORT, "guaranteed_rate": 0.2})
    result = FairSelection(strategy, scheduler, poll=0.001).start(
        InProcessGrid(named_nodes(CLIENTS, 0.0)), model(*START), num_rounds=1
    )
    update = np.array(weights(result.arrays)) - np.array(START)
    assert len(set(update.tolist())) == len(START)  # without noise all weights change by the same amount


def test_the_config_of_a_strategy_reaches_the_clients(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(2, 0.0))
    FairSelection(open_to_all(stock.FedProx, proximal_mu=0.25), open_fleet(), poll=0.001).start(
        grid, model(0.0), num_rounds=2
    )
    configs = [dict(sent.content.config_records["config"]) for push in grid.sent("train") for sent in push]
    assert {config["proximal-mu"] for config in configs} == {0.25}


@pytest.mark.parametrize("policy", ["random", "round-robin"])
def test_other_policies_can_select(open_fleet: OpenFleet, policy: str) -> None:
    scheduler = open_fleet(policy=policy, settings={"cohort_size": 2})
    grid = InProcessGrid(named_nodes(4, 0.0))
    result = FairSelection(open_to_all(), scheduler, poll=0.001).start(grid, model(0.0), num_rounds=3)
    assert grid.asked("train") == [sorted(turn.id for turn in scheduler.history(round=number)) for number in (1, 2, 3)]
    assert "turnout-round-seconds" in result.train_metrics_clientapp[3]


# Strategies that cannot be used


def test_a_strategy_with_its_own_sampling_is_refused(open_fleet: OpenFleet) -> None:
    with pytest.raises(SettingError, match=r"min_train_nodes=2 may wait indefinitely.*use another strategy"):
        FairSelection(stock.FedXgbCyclic(min_available_nodes=1), open_fleet())


class Picky(stock.FedAvg):
    """Sends a message to one of the visible nodes."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        return list(super().configure_train(*args, **kwargs))[:1]


class Double(stock.FedAvg):
    """Sends two messages to each visible node."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        return [*super().configure_train(*args, **kwargs), *super().configure_train(*args, **kwargs)]


@pytest.mark.parametrize(
    ("kind", "sent"), [(Picky, "sends 1 messages to 1 nodes"), (Double, "sends 4 messages to 2 nodes")]
)
def test_a_strategy_that_does_not_message_each_selected_node_once_is_refused(
    open_fleet: OpenFleet, kind: type[stock.FedAvg], sent: str
) -> None:
    grid = InProcessGrid(named_nodes(3))
    with pytest.raises(SettingError, match=f"{kind.__name__} sees 2 selected nodes but {sent}"):
        FairSelection(open_to_all(kind), open_fleet(), poll=0.001).start(grid, model(0.0))
    assert grid.sent("train") == []


def test_differential_privacy_around_fair_selection_is_refused(open_fleet: OpenFleet) -> None:
    fair = FairSelection(open_to_all(), open_fleet())
    outer = stock.DifferentialPrivacyServerSideFixedClipping(fair, 0.0, 1.0, COHORT)
    with pytest.raises(SettingError, match="FairSelection must be the outermost strategy"):
        outer.start(InProcessGrid(named_nodes(3)), model(0.0))
