"""Runs any Flower strategy so that a scheduler selects its cohorts: joins the core with the parts around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NoReturn

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from turnout.adapters.common.fleet import facts_of, open_fleet
from turnout.adapters.flower.checks.aggregation import GuardedAggregator
from turnout.adapters.flower.checks.replies import ReplyJudge
from turnout.adapters.flower.checks.strategies import LEGACY_ADVICE, check_minima, check_strategy, weight_key
from turnout.adapters.flower.core.exchange import Exchange
from turnout.adapters.flower.core.intake import ReplyIntake
from turnout.adapters.flower.core.messages import Messenger
from turnout.adapters.flower.core.nodes import NodeDirectory
from turnout.adapters.flower.core.parts import Judge, Parts
from turnout.adapters.flower.core.progress import Progress
from turnout.adapters.flower.core.training import Evaluate, Training
from turnout.adapters.flower.groups import NodeGroups
from turnout.adapters.flower.resume.progress import SavedProgress
from turnout.adapters.flower.settings import ClientSettings, ExchangeSettings, VersionSettings
from turnout.adapters.flower.simulated import SimulatedExchange, SimulatedFleet, SimulatedSlots
from turnout.adapters.flower.slots.exchange import SlotExchange
from turnout.adapters.flower.slots.strategies import version_size
from turnout.client import FleetClient
from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.lab.worlds.base import World
from turnout.live import Scheduler
from turnout.log import get_log
from turnout.storage.store import Location
from turnout.tracking import Tracker

log = get_log("flwr")


class FairSelection:
    """Trains on exactly the clients that the scheduler selects; the strategy does everything else.

    While the strategy configures training, it sees only the selected nodes and uses all of them. The server's monotonic
    clock measures when replies arrive. After each round the run is saved next to the fleet file, and a restarted server
    resumes it.

    Args:
        strategy: any strategy of `flwr.serverapp.strategy` that trains on all visible nodes.
        scheduler: selects the cohorts and records all outcomes: a Scheduler, or the address of a service, such as
            "https://host/v1/fleets/phones" (several, separated by commas, if services take over from each other), or a
            FleetClient.
        token: the token of the service, whose role is server; by default the value of TURNOUT_TOKEN.
        nodes: the number of connected nodes to wait for before the first round.
        simulated: in a simulation, the world that determines which clients are available and how long each takes;
            client "7" (its partition-id) is row 7 of the world.
        resume: whether to resume an unfinished run; False discards it and starts a new one.
        save: whether to save the run after each round, next to the fleet file; or what the names of its files begin
            with, such as "/srv/run", which a fleet without a file needs.
        tracker: receives the metrics of every round, of the selection and of the training, such as
            "tensorboard:logs"; see `Scheduler.track`. It is opened and closed by `start`.
        clients: which clients take part, and how they are found.
        exchange: how messages are exchanged, and which replies are used.
        versions: how updates become versions of the model, in a fleet without rounds.
    """

    def __init__(
        self,
        strategy: Strategy,
        scheduler: Scheduler | FleetClient | str,
        *,
        token: str | None = None,
        nodes: int = 1,
        simulated: World | None = None,
        resume: bool = True,
        save: bool | str | Path = True,
        tracker: str | Tracker | None = None,
        clients: ClientSettings | None = None,
        exchange: ExchangeSettings | None = None,
        versions: VersionSettings | None = None,
    ) -> None:
        check_strategy(strategy)
        clients, exchange = clients or ClientSettings(), exchange or ExchangeSettings()
        fleet = open_fleet(scheduler, token)
        facts = self._facts = facts_of(fleet)
        self.strategy, self.scheduler, self._tracker = strategy, fleet, tracker
        self._versions = versions or VersionSettings()
        self._updates = version_size(strategy, fleet, self._versions, is_simulated=simulated is not None)
        size = self._updates or facts.target_size
        check_minima(strategy, size)
        kind = SimulatedFleet if self._updates is None else SimulatedSlots
        self._simulated = None if simulated is None else kind(simulated, fleet.settings.model_size)
        needed = None if simulated is not None else fleet.settings.concurrency or size
        self._nodes = NodeDirectory(facts.features, clients.patience, needed, NodeGroups(clients, fleet))
        self._min_nodes = as_count("nodes", nodes, SettingError)
        self._clients, self._exchange = clients, exchange
        self._progress = Progress(fleet)
        if save:
            path = _run_path(save, facts.location)
            self._progress = SavedProgress(fleet, strategy, self._simulated, path=path, resume=resume)

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
            num_rounds: the total number of rounds, including those before a restart; in a fleet without rounds, the
                number of versions of the model.
            timeout: seconds to wait for replies if the fleet has no deadline, and for the first nodes.
            train_config: settings that are sent with each training message.
            evaluate_config: settings that are sent with each evaluation message.
            evaluate_fn: evaluates the model on the server after each round.
        """
        if self._tracker is not None:
            self._facts.track(self._tracker)
        try:
            self._progress.begin(initial_arrays, num_rounds)
            self.summary()
            parts, train, evaluate = self._parts(grid, timeout), train_config, evaluate_config
            train, evaluate = (ConfigRecord() if config is None else config for config in (train, evaluate))
            return Training(parts, self._intake(parts), train, evaluate, evaluate_fn).run()
        finally:
            if self._tracker is not None:
                self._facts.track(None)

    def summary(self) -> None:
        """Logs the selection policy, followed by the summary of the strategy."""
        settings = self.scheduler.settings
        log.info("Starting fair selection:")
        log.info("\t├──> turnout: %s %s, %s", settings.policy, dict(settings.settings), self._facts.location)
        log.info("\t├──> Strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    def _parts(self, grid: Grid, timeout: float) -> Parts:
        exchange, key = self._exchange, weight_key(self.strategy)
        return Parts(
            self.strategy,
            self.scheduler,
            self._nodes,
            exchange,
            Messenger(grid, exchange.poll),
            ReplyJudge(key) if exchange.check_replies else Judge(),
            GuardedAggregator(self.strategy, self._nodes, key, exchange),
            self._progress,
            None if self._simulated is None else self._simulated.statuses,
            self._min_nodes,
            self._clients.patience,
            timeout,
        )

    def _intake(self, parts: Parts) -> ReplyIntake:
        world = self._simulated
        if self._updates is not None:
            slots = world if isinstance(world, SimulatedSlots) else None
            return SlotExchange(parts, slots, self._updates, self._versions.discount)
        return Exchange(parts) if world is None else SimulatedExchange(parts, world)

    # What Flower calls of a strategy that is not started itself

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:
        """Raises SettingError: another strategy is around this one."""
        raise SettingError(
            "FairSelection must be the outermost strategy, and its own start must be called: write "
            "FairSelection(Other(FedAvg(…)), scheduler).start(…)"
        )

    def initialize_parameters(self, *_: Any, **__: Any) -> NoReturn:
        """Raises SettingError: the server of Flower's older interface calls this method of its strategy."""
        raise SettingError(
            "FairSelection cannot be the strategy of ServerAppComponents, which belongs to Flower's older interface: "
            f"call its start in a function with @app.main(), {LEGACY_ADVICE}"
        )


def _run_path(save: str | Path | Literal[True], location: Location | str) -> Path:
    """Returns what the names of the files of a run begin with: by default the file of the fleet."""
    if save is not True:
        return Path(save)
    if not isinstance(location, Path):
        raise SettingError(
            f'{location} has no file next to which the run could be saved: pass save="/srv/run", the beginning of the '
            "names of its files, or save=False"
        )
    return location
