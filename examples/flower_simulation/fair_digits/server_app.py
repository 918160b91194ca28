"""The server: the same training twice for each seed, once with Flower's own choice and once with a fair one."""

import json
import random
import tempfile
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
from turnout.adapters.flower import FairSelection, clients_of, showing
from turnout.simulator import PaperWorld

app = ServerApp()


class FlowersChoice(FedAvg):
    """Flower's random choice among the phones that volunteer; the world tells how long each takes."""

    def __init__(self, world: PaperWorld, nodes: dict[str, int], cohort: int) -> None:
        super().__init__(fraction_train=1e-9, min_train_nodes=cohort, min_available_nodes=cohort, fraction_evaluate=0.0)
        self.world, self.nodes = world, nodes
        self.seconds: list[float] = []
        self.turns = np.zeros(world.clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Let Flower sample, and note whom."""
        offer = self.world.offer(server_round)
        volunteers = {node: int(phone) for phone, node in self.nodes.items() if offer.available[int(phone)]}
        messages = list(super().configure_train(server_round, arrays, config, showing(grid, volunteers)))
        chosen = sorted(volunteers[message.metadata.dst_node_id] for message in messages)
        self.seconds.append(self.world.play(offer, Selection(server_round, chosen)).duration)
        self.turns[chosen] += 1
        return messages


@dataclass
class Run:
    """How one training went, round by round."""

    policy: str
    seed: int
    seconds: list[float]
    accuracy: list[float]
    turns: list[int]

    def minutes_to(self, target: float) -> float:
        """Until five rounds in a row had this accuracy on average; infinite if none had."""
        smooth = np.convolve(self.accuracy, np.full(5, 0.2), "valid")
        reached = np.flatnonzero(smooth >= target)
        return float(np.cumsum(self.seconds)[reached[0] + 4] / 60) if len(reached) else float("inf")

    @property
    def final(self) -> float:
        """Mean accuracy of the last tenth of the rounds."""
        return float(np.mean(self.accuracy[-max(len(self.accuracy) // 10, 1) :]))

    @property
    def least_share(self) -> float:
        """In what share of the rounds the phone that trained least did train."""
        return min(self.turns) / len(self.seconds)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play all, print the table, and keep what it was made from."""
    settings = context.run_config
    out = Path(str(settings["out"]) or tempfile.mkdtemp(prefix="fair-digits-"))
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("seed-*.turnout")):
        raise SystemExit(f"{out} holds the fleets of an earlier comparison: give another folder")
    runs = []
    for seed in range(int(settings["seeds"])):
        runs += [with_flower(grid, settings, seed), with_turnout(grid, settings, seed, out)]
    (out / "runs.json").write_text(json.dumps([asdict(run) for run in runs]))
    show(runs, float(settings["guaranteed-rate"]), out)


def with_flower(grid: Grid, settings: dict, seed: int) -> Run:
    """Random choice, as Flower makes it."""
    random.seed(seed)
    strategy = FlowersChoice(PaperWorld(seed), everyone(grid), int(settings["cohort-size"]))
    accuracy = train(strategy, grid, settings, seed)
    return Run("Flower's random choice", seed, strategy.seconds, accuracy, strategy.turns.astype(int).tolist())


def with_turnout(grid: Grid, settings: dict, seed: int, out: Path) -> Run:
    """Fair choice: the same strategy, and a scheduler."""
    everyone(grid)
    promise = {name: settings[name.replace("_", "-")] for name in ("cohort_size", "guaranteed_rate", "speed_weight")}
    promise["accrual"] = "always"  # a share of all rounds, not only of those that a phone volunteers for
    strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    with Scheduler.open(out / f"seed-{seed}.turnout", settings=promise) as scheduler:
        fair = FairSelection(strategy, scheduler, simulated=PaperWorld(seed), resume=False, nodes=PHONES, poll=0.05)
        accuracy = train(fair, grid, settings, seed)
        turns, ids = scheduler.certificate().turns, scheduler.clients
        seconds = [max(turn.seconds for turn in scheduler.turns(number)) for number in range(1, scheduler.round + 1)]
        return Run("turnout, RBCS-F", seed, seconds, accuracy, [int(turns[ids.index(str(n))]) for n in range(PHONES)])


def train(strategy: FedAvg | FairSelection, grid: Grid, settings: dict, seed: int) -> list[float]:
    """All rounds of one training; test accuracy after each."""
    name, accuracy = str(settings["dataset"]), []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy.append(learner(name).evaluate([arrays["weights"].numpy()])[0])
        return MetricRecord({"accuracy": accuracy[-1]})

    strategy.start(
        grid=grid,
        initial_arrays=to_record(learner(name).initial_weights(seed)),
        num_rounds=int(settings["rounds"]),
        train_config=ConfigRecord({"seed": seed}),
        evaluate_fn=evaluate,
    )
    return accuracy[1:]


def everyone(grid: Grid) -> dict[str, int]:
    """The node of each phone, once all have registered."""
    while len(nodes := clients_of(grid)) < PHONES:
        print(f"{len(nodes)} of {PHONES} phones are there")
    return nodes


def show(runs: list[Run], promised: float, out: Path) -> None:
    """What fair selection changed, on average over the seeds, ± a 95 % interval of it."""
    by_policy: dict[str, list[Run]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    random_runs = by_policy["Flower's random choice"]
    targets = [0.95 * run.final for run in random_runs]
    seeds = f"{len(targets)} seed{'s' * (len(targets) > 1)}"
    table = Table(title=f"{len(runs[0].seconds)} rounds, {seeds}; promised share {promised:g}")
    for heading in ("", "round, s", "min to 95 % of random's accuracy", "final accuracy", "least-chosen phone's share"):
        table.add_column(heading, justify="right" if heading else "left")
    for policy, some in by_policy.items():
        columns = (
            [float(np.mean(run.seconds)) for run in some],
            [run.minutes_to(target) for run, target in zip(some, targets, strict=True)],
            [run.final for run in some],
            [run.least_share for run in some],
        )
        table.add_row(policy, *(mean_and_band(column) for column in columns))
    Console(width=110).print(table)
    fair = by_policy["turnout, RBCS-F"]
    saved = [
        1 - one.minutes_to(target) / other.minutes_to(target)
        for one, other, target in zip(fair, random_runs, targets, strict=True)
    ]
    if np.isfinite(saved).all():
        print(f"Fair selection needed {mean_and_band([100 * share for share in saved])} % less simulated time.")
    else:
        print("Not every training came that far: play more rounds.")
    print(f"Every run and the fleets' files are in {out}; look into one: turnout fleet status {out}/seed-0.turnout")


def mean_and_band(numbers: list[float]) -> str:
    """A mean, and half the width of its 95 % confidence interval (Student's t)."""
    quantile = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(numbers), 2.0)
    if len(numbers) == 1:
        return f"{numbers[0]:.3g}"
    return f"{np.mean(numbers):.3g} ± {quantile * np.std(numbers, ddof=1) / np.sqrt(len(numbers)):.2g}"
