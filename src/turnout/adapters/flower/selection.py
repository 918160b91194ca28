"""Wraps any Flower strategy so that a scheduler selects its cohorts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from turnout.adapters.flower.checks import (
    check_recipients,
    check_strategy,
    evaluates_on_clients,
    min_nodes_to_evaluate,
)
from turnout.adapters.flower.exchange import Exchange, LiveRound
from turnout.adapters.flower.grid import POLL, RestrictedGrid, TimedGrid
from turnout.adapters.flower.nodes import NodeDirectory
from turnout.adapters.flower.round_summary import describe_outcome, describe_selection, round_metrics
from turnout.adapters.flower.saved_run import (
    RunFiles,
    SavedRun,
    metrics_of,
    restore_strategy,
    shapes_of,
    strategy_state,
)
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.adapters.flower.wire import pop_client_info
from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import as_count, as_number
from turnout.scheduler import Scheduler
from turnout.simulator.world import World
from turnout.store.training_log import METRIC_KINDS, Metrics

log = logging.getLogger("flwr")
CONNECTION_POLL = 1.0  # seconds between two checks of the connected nodes, at most
PROGRESS_INTERVAL = 10  # seconds between two log lines while waiting for nodes
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FairSelection(Strategy):
    """Trains on exactly the clients that the scheduler selects; the wrapped strategy does everything else.

    While the strategy configures training, it sees only the selected nodes and uses all of them. The server's monotonic
    clock measures when replies arrive. After each round the run is saved next to the fleet file, and a restarted server
    resumes it.

    Args:
        strategy: any strategy of `flwr.serverapp.strategy` that trains on all visible nodes.
        scheduler: selects the cohorts and records all outcomes.
        context: how clients report their status. "reply": with each reply, so that only new nodes are queried;
            "query": all connected nodes are queried before each selection.
        nodes: the number of connected nodes to wait for before the first round.
        simulated: in a simulation, the world that determines which clients are available and how long each takes;
            client "7" (its partition-id) is row 7 of the world.
        loss_key: the metric in a client's reply that holds its training loss, for policies such as Oort.
        resume: whether to resume an unfinished run; False discards it and starts a new one.
        save: whether to save the run after each round.
        patience: the timeout in seconds for a client to identify itself.
        poll: seconds between two polls for replies.
    """

    def __init__(
        self,
        strategy: Strategy,
        scheduler: Scheduler,
        *,
        context: Literal["reply", "query"] = "reply",
        nodes: int = 1,
        simulated: World | None = None,
        loss_key: str | None = "train_loss",
        resume: bool = True,
        save: bool = True,
        patience: float = 30.0,
        poll: float = POLL,
    ) -> None:
        check_strategy(strategy)
        if context not in ("reply", "query"):
            raise SettingError(f"context must be 'reply' or 'query', not {context!r}")
        self.strategy, self.scheduler = strategy, scheduler
        self._context, self._min_nodes = context, as_count("nodes", nodes, SettingError)
        self._simulated = None if simulated is None else SimulatedFleet(simulated, scheduler.settings.model_size)
        self._resume, self._save = resume, save
        self._poll = as_number("poll", poll, SettingError, above=0)
        self._patience = as_number("patience", patience, SettingError, above=0)
        self._nodes = NodeDirectory(scheduler.features, self._patience)
        self._files = RunFiles(scheduler.path)
        self._metrics: dict[str, Metrics] = {}
        self._exchange = Exchange(scheduler, self._nodes, self._simulated, loss_key)
        self._offset, self._rounds, self._timeout = 0, 0, 0.0
        self._gathered = False  # whether `nodes` nodes have been connected since the start
        self._arrays, self._initial_shapes = ArrayRecord(), dict[str, list[int]]()
        self._round: LiveRound | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Trains for `num_rounds` rounds, like Flower's own `start`; resumes an unfinished run after its last round.

        Args:
            grid: Flower's grid.
            initial_arrays: the initial model.
            num_rounds: the total number of rounds, including those before a restart.
            timeout: seconds to wait for replies if the fleet has no deadline, and for the first nodes.
            train_config: settings that are sent with each training message.
            evaluate_config: settings that are sent with each evaluation message.
            evaluate_fn: evaluates the model on the server after each round.
        """
        self._rounds, self._timeout, self._arrays = num_rounds, timeout, initial_arrays
        self._initial_shapes = shapes_of(initial_arrays)
        self._metrics = {kind: {} for kind in METRIC_KINDS}
        self._offset, self._round, self._gathered = 0, None, False
        self._exchange.clear()
        self._load_saved_run()
        timed_grid = TimedGrid(grid, self._poll, self._train)
        self._complete_evaluation(timed_grid, evaluate_config)
        evaluate = None if evaluate_fn is None else self._with_true_round(evaluate_fn)
        remaining = max(num_rounds - self._offset, 0)
        result = super().start(timed_grid, self._arrays, remaining, timeout, train_config, evaluate_config, evaluate)
        result.arrays = self._arrays
        for kind, by_round in (
            ("train", result.train_metrics_clientapp),
            ("evaluate", result.evaluate_metrics_clientapp),
            ("server", result.evaluate_metrics_serverapp),
        ):
            by_round.clear()  # Flower numbers the rounds since the restart
            by_round.update({number: MetricRecord(metrics) for number, metrics in self._metrics[kind].items()})
        if self._save and self._rounds:
            self._files.finish()
        return result

    def summary(self) -> None:
        """Logs the selection policy, followed by the summary of the wrapped strategy."""
        settings = self.scheduler.settings
        log.info("\t├──> turnout: %s %s, %s", settings.policy, dict(settings.settings), self.scheduler.path)
        log.info("\t├──> Strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Selects the cohort and lets the strategy configure training on a grid that shows only its nodes."""
        if not isinstance(grid, TimedGrid):
            raise SettingError(
                "FairSelection must be the outermost strategy, and its own start must be called: write "
                "FairSelection(Other(FedAvg(…)), scheduler).start(…)"
            )
        number = server_round + self._offset
        current = self._round = self._select(grid)
        log.info("turnout: round %d asks %s", number, describe_selection(self.scheduler, current.nodes))
        if not current.nodes:
            self._exchange.skip(current)
            return []
        view = RestrictedGrid(grid, current.nodes.values())
        messages = list(self.strategy.configure_train(number, arrays, config, view))
        check_recipients(self.strategy, messages, current.nodes)
        limit = self._exchange.limit(current.opened, self._timeout)
        for message in messages:
            message.metadata.ttl = limit + max(5.0, limit / 10)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Lets the strategy aggregate the replies, saves the model, then closes the round in the fleet."""
        number, current, received = server_round + self._offset, self._round, list(replies)
        if current is None:
            raise StateError("aggregate_train was called before configure_train: call start of FairSelection")
        arrays, metrics = self.strategy.aggregate_train(number, received) if received else (None, None)
        if arrays is not None:
            self._arrays = arrays
        run = self._snapshot(number, current, metrics)
        if self._save:
            self._files.write(run)  # before the round is closed: a crash in between loses neither model nor round
        self._round = None
        return arrays, self._close(run)

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegates to the strategy on all nodes; skips evaluation if the strategy would wait for more nodes."""
        required, connected = min_nodes_to_evaluate(self.strategy), len(list(grid.get_node_ids()))
        if connected < required:
            log.warning(
                "turnout: evaluation is skipped: the strategy needs %d nodes (min_evaluate_nodes), %d are connected",
                required,
                connected,
            )
            return []
        return self.strategy.configure_evaluate(server_round + self._offset, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegates to the strategy, after removing the clients' statuses from the replies."""
        received = list(replies)
        for reply in received:
            if reply.has_content():
                self._nodes.record(reply.metadata.src_node_id, pop_client_info(reply.content))
        if not received:
            return None
        metrics = self.strategy.aggregate_evaluate(server_round + self._offset, received)
        if metrics is not None:
            self._keep_metrics("evaluate", server_round + self._offset, metrics)
        return metrics

    # Selection

    def _select(self, grid: TimedGrid) -> LiveRound:
        """Selects a cohort, or takes over the round that an earlier server left open."""
        number = self.scheduler.round + (self.scheduler.open_round is None)
        connected, recorded, failed = self._connected_clients(grid, number), set[str](), set[str]()
        if self.scheduler.open_round is None:
            self.scheduler.register(list(connected))
            if self._simulated is None:
                cohort = self.scheduler.choose(self._nodes.statuses(connected))
            else:
                cohort = self.scheduler.choose(self._simulated.statuses(number, connected))
        else:
            cohort = self.scheduler.choose({})
            recorded = {turn.id for turn in self.scheduler.turns() if turn.kind is not None}
            failed = {turn.id for turn in self.scheduler.turns() if turn.kind == "failed"}
            for client in cohort:
                if client not in connected and client not in recorded:
                    self.scheduler.report_failure(client, "was not connected when the server restarted")
        opened = self.scheduler.open_round
        if opened is None:
            raise StateError("the scheduler has no open round after a selection: another process closed it")
        nodes = {client: connected[client] for client in cohort if client in connected and client not in failed}
        return LiveRound(opened, nodes, recorded)

    def _connected_clients(self, grid: TimedGrid, number: int) -> dict[str, int]:
        """Returns the node of each connected client; waits up to the timeout for the first one."""
        start = time.monotonic()
        while True:
            connected = self._connected_nodes(grid)
            if self._context == "query":
                self._nodes.query(grid, connected)
            else:
                self._nodes.query_unknown(grid, connected, number)
            by_client = self._nodes.nodes_by_client(connected)
            if by_client:
                return by_client
            if time.monotonic() - start > self._timeout:
                raise SettingError(
                    f"none of {len(connected)} nodes identified itself within {self._timeout:g} s: check the log of a "
                    "SuperNode, or increase patience and timeout"
                )
            time.sleep(self._poll)

    def _connected_nodes(self, grid: TimedGrid) -> list[int]:
        """Returns the connected nodes; before the first round, waits up to the timeout for `nodes` of them.

        In a fleet that has trained before, some nodes may be gone for good: there it waits at most `patience` seconds.
        """
        start = logged = time.monotonic()
        required = 1 if self._gathered else self._min_nodes
        while len(nodes := grid.get_node_ids()) < required:
            waited = time.monotonic() - start
            if nodes and self.scheduler.round and waited > self._patience:
                log.warning("turnout: continuing with %d of %d nodes", len(nodes), required)
                break
            if waited > self._timeout:
                raise SettingError(
                    f"{len(nodes)} of {required} nodes were connected after {self._timeout:g} s: start more "
                    "SuperNodes, or increase timeout"
                )
            if time.monotonic() - logged >= PROGRESS_INTERVAL or logged == start:
                log.info("turnout: waiting for nodes: %d of %d are connected", len(nodes), required)
                logged = time.monotonic()
            time.sleep(min(CONNECTION_POLL, self._poll))
        self._gathered = True
        return nodes

    def _train(self, grid: TimedGrid, messages: list[Message], timeout: float | None) -> list[Message]:
        if self._round is None:
            raise StateError("training messages were sent without a selection: call start of FairSelection")
        return self._exchange.run(grid, self._round, messages, timeout)

    # Saving and resuming

    def _load_saved_run(self) -> None:
        """Restores an unfinished run, if there is one."""
        if not self._resume:
            self._files.remove()
        saved = self._files.read() if self._save else None
        if saved is None:
            return
        if saved.begun_with != self._initial_shapes:
            raise StateError(
                f"{self._files.model} holds an unfinished run of another model: finish it with that model, or start a "
                "new run with resume=False"
            )
        restore_strategy(self.strategy, saved.strategy)
        if self._simulated is not None:
            self._simulated.restore(saved.world)
        self._offset, self._arrays = saved.server_round, saved.arrays
        self._metrics |= self._files.read_metrics(saved.server_round)
        if saved.server_round not in self._metrics["train"]:
            self._close(saved)  # the server stopped after saving the model, before closing the round
        log.info(
            "turnout: resuming after round %d of %d (Flower counts from 1 again)", saved.server_round, self._rounds
        )

    def _complete_evaluation(self, grid: TimedGrid, config: ConfigRecord | None) -> None:
        """Evaluates the restored model on the clients if the interrupted server had not done so."""
        if not self._offset or self._offset in self._metrics["evaluate"] or not evaluates_on_clients(self.strategy):
            return
        self._connected_nodes(grid)
        messages = self.configure_evaluate(0, self._arrays, ConfigRecord() if config is None else config, grid)
        self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=self._timeout))

    def _snapshot(self, number: int, current: LiveRound, metrics: MetricRecord | None) -> SavedRun:
        """Returns everything that is needed to resume after this round."""
        return SavedRun(
            number,
            current.opened.round,
            self._rounds,
            current.waited,
            self._initial_shapes,
            self._arrays,
            {} if metrics is None else metrics_of(metrics),
            self.scheduler.predicted(),
            strategy_state(self.strategy),
            {} if self._simulated is None else self._simulated.state(),
        )

    def _close(self, run: SavedRun) -> MetricRecord:
        """Closes the round in the fleet and returns its metrics, including those of the selection."""
        opened = self.scheduler.open_round
        if opened is not None and opened.round == run.fleet_round:
            self.scheduler.close_round(after=run.waited or None)
        outcome = describe_outcome(self.scheduler, run.fleet_round, run.expected)
        log.info("turnout: round %d %s", run.server_round, outcome)
        metrics = MetricRecord({**run.metrics, **round_metrics(self.scheduler, run.fleet_round, run.expected)})
        self._keep_metrics("train", run.server_round, metrics)
        return metrics

    def _keep_metrics(self, kind: str, number: int, metrics: MetricRecord) -> None:
        self._metrics[kind][number] = metrics_of(metrics)
        if self._save:
            self._files.write_metrics(self._metrics)

    def _with_true_round(self, evaluate: Evaluate) -> Evaluate:
        """Wraps the server's evaluation so that it receives the round number counted from the start of the run."""

        def evaluate_true_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            number = server_round + self._offset
            if number in self._metrics["server"]:
                return None  # evaluated before the interruption
            metrics = evaluate(number, arrays)
            if metrics is not None:
                self._keep_metrics("server", number, metrics)
            return metrics

        return evaluate_true_round
