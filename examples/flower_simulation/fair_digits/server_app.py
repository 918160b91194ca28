"""The server: trains twice for each seed, with random selection and with fair selection; in rounds, or without."""

import json
import random
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from rich.console import Console
from rich.table import Table

from fair_digits.task import PHONES, learner, to_record
from turnout import Scheduler, Selection
from turnout.adapters.flower import ExchangeSettings, FairSelection, VersionSettings, identify_clients, restrict_grid
from turnout.lab import PaperWorld

app = ServerApp()
QUICK = ExchangeSettings(poll=0.02)  # all nodes are on this machine


class RandomSelection(FedAvg):
    """Flower's random selection among the available phones; the world determines how long each takes."""

    def __init__(self, world: PaperWorld, nodes: dict[str, int], cohort: int) -> None:
        super().__init__(fraction_train=1e-9, min_train_nodes=cohort, min_available_nodes=cohort, fraction_evaluate=0.0)
        self.world, self.nodes = world, nodes
        self.seconds: list[float] = []
        self.turns = np.zeros(world.clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Lets Flower sample the cohort, and records its round time and turns."""
        offer = self.world.offer(server_round)
        available = {node: int(phone) for phone, node in self.nodes.items() if offer.available[int(phone)]}
        messages = list(super().configure_train(server_round, arrays, config, restrict_grid(grid, available)))
        cohort = sorted(available[message.metadata.dst_node_id] for message in messages)
        self.seconds.append(self.world.play(offer, Selection(server_round, cohort)).duration)
        self.turns[cohort] += 1
        return messages


@dataclass
class Run:
    """The result of one run: time and accuracy of each round, or version of the model, and turns of each phone.

    `decisions` is the number of rounds, or of turns, of which every phone was promised a share.
    """

    policy: str
    seed: int
    seconds: list[float]
    accuracy: list[float]
    turns: list[int]
    decisions: int

    def minutes_to(self, target: float) -> float:
        """Returns the minutes until the mean accuracy of five consecutive rounds reaches the target, or infinity."""
        smoothed = np.convolve(self.accuracy, np.full(5, 0.2), "valid")
        reached = np.flatnonzero(smoothed >= target)
        return float(np.cumsum(self.seconds)[reached[0] + 4] / 60) if len(reached) else float("inf")

    @property
    def final(self) -> float:
        """The mean accuracy over the last tenth of the rounds."""
        return float(np.mean(self.accuracy[-max(len(self.accuracy) // 10, 1) :]))

    @property
    def least_share(self) -> float:
        """The smallest share that any phone had."""
        return min(self.turns) / self.decisions


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Plays all runs, saves the results and prints the comparison."""
    settings = context.run_config
    out = Path(str(settings["out"]) or tempfile.mkdtemp(prefix="fair-digits-"))
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("seed-*.turnout")):
        raise SystemExit(f"{out} holds the fleets of an earlier comparison: set out to another folder")
    runs = []
    promised = float(settings["guaranteed-rate"])
    for seed in range(int(settings["seeds"])):
        if settings["concurrency"]:
            promised = 0.75 / PHONES  # three quarters of an equal share of the turns
            runs.append(without_rounds(grid, settings, seed, out, "random"))
            runs.append(without_rounds(grid, settings, seed, out, "fair-pace", guaranteed_rate=promised, tolerance=1.0))
        else:
            runs += [with_flower(grid, settings, seed), with_turnout(grid, settings, seed, out)]
    (out / "runs.json").write_text(json.dumps([asdict(run) for run in runs]))
    show(runs, "version" if settings["concurrency"] else "round", promised, out)


def with_flower(grid: Grid, settings: dict, seed: int) -> Run:
    """Trains with Flower's random selection."""
    random.seed(seed)
    strategy = RandomSelection(PaperWorld(seed), all_phones(grid), int(settings["cohort-size"]))
    accuracy = train(strategy, grid, settings, seed)
    turns = strategy.turns.astype(int).tolist()
    return Run("Flower's random choice", seed, strategy.seconds, accuracy, turns, len(strategy.seconds))


def with_turnout(grid: Grid, settings: dict, seed: int, out: Path) -> Run:
    """Trains with the same strategy and fair selection."""
    all_phones(grid)
    promise = {name: settings[name.replace("_", "-")] for name in ("cohort_size", "guaranteed_rate")}
    promise["accrual"] = "always"  # a share of all rounds, not only of those in which a phone is available
    strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    with Scheduler.open(out / f"seed-{seed}.turnout", settings=promise) as scheduler:
        fair = FairSelection(
            strategy, scheduler, simulated=PaperWorld(seed), resume=False, nodes=PHONES, exchange=QUICK
        )
        accuracy = train(fair, grid, settings, seed)
        turns, ids = scheduler.certificate().turns, scheduler.clients
        rounds = [scheduler.history(round=number) for number in range(1, scheduler.round + 1)]
        seconds = [max(turn.seconds for turn in turns_of_round) for turns_of_round in rounds]
        by_phone = [int(turns[ids.index(str(n))]) for n in range(PHONES)]
        return Run("turnout, FairPace", seed, seconds, accuracy, by_phone, scheduler.round)


def without_rounds(grid: Grid, settings: dict, seed: int, out: Path, policy: str, **promise: float) -> Run:
    """Trains with slots and a buffer (FedBuff), whose clients are selected by a policy of turnout."""
    strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    slots, updates_per_version = int(settings["concurrency"]), int(settings["updates_per_version"])
    path = out / f"seed-{seed}-{policy}.turnout"
    with Scheduler.open(path, policy=policy, settings=promise, concurrency=slots) as scheduler:
        fair = FairSelection(
            strategy,
            scheduler,
            versions=VersionSettings(updates_per_version=updates_per_version),
            simulated=PaperWorld(seed),
            resume=False,
            nodes=PHONES,
            exchange=QUICK,
        )
        seconds: list[float] = []
        accuracy = train(fair, grid, settings, seed, seconds)
        turns = [len(scheduler.history(str(phone))) for phone in range(PHONES)]
        name = {"random": "FedBuff, random choice", "fair-pace": "FedBuff, FairPace"}[policy]
        return Run(name, seed, seconds, accuracy, turns, scheduler.round)


def train(
    strategy: FedAvg | FairSelection, grid: Grid, settings: dict, seed: int, seconds: list[float] | None = None
) -> list[float]:
    """Trains all rounds of one run; returns the test accuracy after each.

    Without rounds, `seconds` gets the seconds that each version took.
    """
    name, accuracy = str(settings["dataset"]), []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy.append(learner(name).evaluate([arrays["weights"].numpy()])[0])
        return MetricRecord({"accuracy": accuracy[-1]})

    result = strategy.start(
        grid=grid,
        initial_arrays=to_record(learner(name).initial_weights(seed)),
        num_rounds=int(settings["rounds"]),
        train_config=ConfigRecord({"seed": seed}),
        evaluate_fn=evaluate,
    )
    if seconds is not None:
        versions = result.train_metrics_clientapp.values()
        seconds += [float(version["turnout-version-seconds"]) for version in versions]
    return accuracy[1:]


def all_phones(grid: Grid) -> dict[str, int]:
    """Waits until all phones are connected and returns the node of each."""
    while len(connected := grid.get_node_ids()) < PHONES:
        print(f"{len(connected)} of {PHONES} phones are connected")
        time.sleep(1)
    return identify_clients(grid, patience=600.0)


def show(runs: list[Run], unit: str, promised: float, out: Path) -> None:
    """Prints the mean of each measure over the seeds, ± the half-width of its 95 % confidence interval."""
    by_policy: dict[str, list[Run]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    random_runs, fair_runs = by_policy.values()
    targets = [0.95 * run.final for run in random_runs]
    seeds = f"{len(targets)} seed{'s' * (len(targets) > 1)}"
    table = Table(title=f"{len(runs[0].seconds)} {unit}s, {seeds}; promised share {promised:g}")
    for heading in (
        "",
        f"{unit}, s",
        "min to 95 % of random's accuracy",
        "final accuracy",
        "least-chosen phone's share",
    ):
        table.add_column(heading, justify="right" if heading else "left")
    for policy, policy_runs in by_policy.items():
        columns = (
            [float(np.mean(run.seconds)) for run in policy_runs],
            [run.minutes_to(target) for run, target in zip(policy_runs, targets, strict=True)],
            [run.final for run in policy_runs],
            [run.least_share for run in policy_runs],
        )
        table.add_row(policy, *(mean_and_interval(column) for column in columns))
    Console(width=110).print(table)
    saved = [
        1 - fair_run.minutes_to(target) / random_run.minutes_to(target)
        for fair_run, random_run, target in zip(fair_runs, random_runs, targets, strict=True)
    ]
    if np.isfinite(saved).all() and max(saved) < 1:
        print(f"Fair selection needed {mean_and_interval([100 * share for share in saved])} % less simulated time.")
    else:
        print("Not every run reached this accuracy: play more rounds.")
    fleet = sorted(out.glob("seed-0*.turnout"))[0]
    print(f"Every run and the fleet files are in {out}; to inspect a fleet: turnout fleet status {fleet}")


def mean_and_interval(numbers: list[float]) -> str:
    """Formats a mean and the half-width of its 95 % confidence interval (Student's t)."""
    quantile = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(numbers), 2.0)
    if len(numbers) == 1:
        return f"{numbers[0]:.3g}"
    return f"{np.mean(numbers):.3g} ± {quantile * np.std(numbers, ddof=1) / np.sqrt(len(numbers)):.2g}"
