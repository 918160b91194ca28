"""Every stock strategy: only the cohort trains, all clients evaluate, and the aggregation is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp import strategy as stock
from flwr.serverapp.strategy import Strategy

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, model, named_nodes, open_to_all, train, turns_of, weights
from turnout.adapters.flower import FairSelection
from turnout.errors import SettingError

CLIENTS, COHORT, ROUNDS = 7, 3, 5
START = (1.0, -2.0, 0.5)


def private(kind: str, **settings: Any) -> Strategy:
    wrapper: Callable[..., Strategy] = getattr(stock, f"DifferentialPrivacy{kind}Clipping")
    return wrapper(open_to_all(), noise_multiplier=0.0, num_sampled_clients=COHORT, **settings)


STOCK: dict[str, Callable[[], Strategy]] = {
    "FedAvg": open_to_all,
    "FedProx": lambda: open_to_all(stock.FedProx, proximal_mu=0.1),
    "FedAvgM": lambda: open_to_all(stock.FedAvgM, server_learning_rate=0.5, server_momentum=0.9),
    "FedAdam": lambda: open_to_all(stock.FedAdam),
    "FedAdagrad": lambda: open_to_all(stock.FedAdagrad),
    "FedYogi": lambda: open_to_all(stock.FedYogi, eta=0.1),
    "FedMedian": lambda: open_to_all(stock.FedMedian),
    "FedTrimmedAvg": lambda: open_to_all(stock.FedTrimmedAvg, beta=0.4),
    "Krum": lambda: open_to_all(stock.Krum),
    "MultiKrum": lambda: open_to_all(stock.MultiKrum, num_nodes_to_select=2),
    "Bulyan": lambda: open_to_all(stock.Bulyan),
    "QFedAvg": lambda: open_to_all(stock.QFedAvg, client_learning_rate=0.1),
    "server, fixed": lambda: private("ServerSideFixed", clipping_norm=4.0),
    "client, fixed": lambda: private("ClientSideFixed", clipping_norm=4.0),
    "server, adaptive": lambda: private("ServerSideAdaptive", initial_clipping_norm=6.0, clipped_count_stddev=0.0),
    "client, adaptive": lambda: private("ClientSideAdaptive", clipped_count_stddev=0.0),
}


@pytest.mark.parametrize("name", STOCK)
def test_only_the_cohort_trains_all_evaluate_and_the_strategy_aggregates(open_fleet: OpenFleet, name: str) -> None:
    scheduler = open_fleet(settings={"cohort_size": COHORT, "guaranteed_rate": 0.2}, deadline=1000.0)
    grid = InProcessGrid(named_nodes(CLIENTS, 0.0))
    result = train(scheduler, grid, STOCK[name](), arrays=model(*START), rounds=ROUNDS, poll=0.001)
    trained = grid.asked("train")
    all_clients = sorted(f"c{row}" for row in range(CLIENTS))
    assert trained == [sorted(turn.id for turn in scheduler.history(round=number)) for number in range(1, ROUNDS + 1)]
    assert all(len(cohort) == COHORT for cohort in trained)
    assert grid.asked("evaluate") == [all_clients] * ROUNDS
    assert sum(turns_of(scheduler).values()) == COHORT * ROUNDS
    assert weights(result.arrays) == pytest.approx(train_plainly(STOCK[name](), trained), rel=1e-12)
    assert list(result.evaluate_metrics_clientapp) == list(range(1, ROUNDS + 1))


def train_plainly(strategy: Strategy, cohorts: list[list[str]]) -> list[float]:
    """Returns the weights that the strategy itself makes of the replies of these cohorts."""
    arrays = model(*START)
    for server_round, cohort in enumerate(cohorts, start=1):
        grid = InProcessGrid([node for node in named_nodes(CLIENTS, 0.0) if node.name in cohort])
        messages = list(strategy.configure_train(server_round, arrays, ConfigRecord(), grid))
        replies = sorted(grid.pull_messages(grid.push_messages(messages)), key=lambda reply: reply.metadata.src_node_id)
        for reply in replies:
            reply.content.pop("turnout")
        aggregated, _ = strategy.aggregate_train(server_round, replies)
        assert aggregated is not None
        assert weights(aggregated) != weights(arrays)
        arrays = aggregated
    return weights(arrays)


def test_the_config_of_a_strategy_reaches_the_clients(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(2, 0.0))
    train(open_fleet(), grid, open_to_all(stock.FedProx, proximal_mu=0.25), rounds=2, poll=0.001)
    configs = [dict(sent.content.config_records["config"]) for push in grid.sent("train") for sent in push]
    assert {config["proximal-mu"] for config in configs} == {0.25}


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


class Elsewhere(stock.FedAvg):
    """Sends as many messages as there are visible nodes, to other nodes."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        messages = list(super().configure_train(*args, **kwargs))
        return [Message(sent.content, node, "train") for node, sent in zip((7, 8), messages, strict=True)]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (Picky, r"sends nothing to the selected nodes \[10\d\]:"),
        (Double, "sends several messages to one node:"),
        (Elsewhere, r"sends nothing to .* \[\d+, \d+\] and sends messages to the nodes \[7, 8\], which"),
    ],
)
def test_a_strategy_that_does_not_message_each_selected_node_once_is_refused(
    open_fleet: OpenFleet, kind: type[stock.FedAvg], sent: str
) -> None:
    grid = InProcessGrid(named_nodes(3))
    with pytest.raises(SettingError, match=f"{kind.__name__} {sent}"):
        train(open_fleet(), grid, open_to_all(kind), poll=0.001)
    assert grid.sent("train") == []


def test_differential_privacy_around_fair_selection_is_refused(open_fleet: OpenFleet) -> None:
    fair = FairSelection(open_to_all(), open_fleet())
    outer = stock.DifferentialPrivacyServerSideFixedClipping(cast("Strategy", fair), 0.0, 1.0, COHORT)
    with pytest.raises(SettingError, match="FairSelection must be the outermost strategy"):
        outer.start(InProcessGrid(named_nodes(3)), model(0.0))
