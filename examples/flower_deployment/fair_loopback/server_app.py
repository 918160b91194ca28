"""The server: a few rounds with Flower's own random choice, then fair ones, in which a client is lost and one joins."""

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from rich.console import Console
from rich.table import Table

from fair_loopback.task import LEARNER, to_record
from turnout import Scheduler
from turnout.adapters.flower import FairSelection, clients_of

app = ServerApp()


class Watched(FedAvg):
    """Flower's own choice, and whom it asked."""

    asked: list[list[int]]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Flower's, noted."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.asked.append([message.metadata.dst_node_id for message in messages])
        return messages


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Both, and a table."""
    told = context.run_config
    out = Path(str(told["out"]) or tempfile.mkdtemp(prefix="fair-loopback-"))
    while len(nodes := clients_of(grid)) < int(told["nodes"]):
        print(f"{len(nodes)} of {told['nodes']} clients are there", flush=True)
        time.sleep(1)
    rows = [with_flower(grid, told, nodes), with_turnout(grid, told, out)]
    (out / "runs.json").write_text(json.dumps(rows))
    show(rows)


def with_flower(grid: Grid, told: dict, nodes: dict[str, int]) -> dict:
    """Random choice among all that are connected."""
    size, names = int(told["cohort-size"]), {node: client for client, node in nodes.items()}
    strategy = Watched(fraction_train=1e-9, min_train_nodes=size, min_available_nodes=size, fraction_evaluate=0.0)
    strategy.asked = []
    curve = train(strategy, grid, int(told["rounds"]))
    turns = Counter(dict.fromkeys(nodes, 0))
    turns.update(names[node] for nodes_of_round in strategy.asked for node in nodes_of_round)
    return {"policy": "Flower's random choice", **curve, "turns": dict(turns), "lost": []}


def with_turnout(grid: Grid, told: dict, out: Path) -> dict:
    """Fair choice; whoever is lost costs a deadline, and the next rounds choose among the others."""
    promise = {"cohort_size": int(told["cohort-size"]), "guaranteed_rate": float(told["guaranteed-rate"])}
    strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    with Scheduler.open(
        out / "fleet.turnout", settings={**promise, "speed_weight": 1.0}, deadline=float(told["deadline"]), rest_after=1
    ) as scheduler:
        curve = train(FairSelection(strategy, scheduler), grid, int(told["fair-rounds"]))
        print(scheduler.status())
        ids, turns = scheduler.clients, scheduler.certificate().turns
        lost = sorted(client for client in ids if missed(scheduler, client))
        reliability = {client: scheduler.reliability(client) for client in ids}
        rounds = [client for client in ids if scheduler.history(client)]
        print(f"reliability: {', '.join(f'{client} {reliability[client]:.2f}' for client in rounds)}")
        return {
            "policy": "turnout, RBCS-F",
            **curve,
            "turns": dict(zip(ids, turns.tolist(), strict=True)),
            "lost": lost,
            "reliability": reliability,
            "owed": dict(zip(ids, scheduler.certificate().owed.tolist(), strict=True)),
        }


def missed(scheduler: Scheduler, client: str) -> bool:
    """Whether its last turn ended in nothing."""
    turns = scheduler.history(client)
    return bool(turns) and turns[-1].kind in ("late", "failed")


def train(strategy: FedAvg | FairSelection, grid: Grid, rounds: int) -> dict[str, list[float]]:
    """All rounds; the accuracy after each, and when that was."""
    began, seconds, accuracy = time.monotonic(), [], []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy.append(LEARNER.evaluate([arrays["weights"].numpy()])[0])
        seconds.append(time.monotonic() - began)
        return MetricRecord({"accuracy": accuracy[-1]})

    initial = to_record(LEARNER.initial_weights(0))
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, timeout=60, evaluate_fn=evaluate)
    return {"seconds": np.diff(seconds).tolist(), "accuracy": accuracy[1:]}


def show(rows: list[dict]) -> None:
    """What fair selection changed on this network, and who was lost."""
    target = 0.95 * rows[0]["accuracy"][-1]
    table = Table(title="Real seconds on one machine; the fair rounds lost a client and gained one")
    for heading in ("", "round, s", "s to 95 % of random's accuracy", "final accuracy", "turns of each client"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        reached = np.flatnonzero(np.array(row["accuracy"]) >= target)
        until = f"{np.cumsum(row['seconds'])[reached[0]]:.1f}" if len(reached) else "never"
        turns = " ".join(f"{client}:{count}" for client, count in sorted(row["turns"].items()))
        table.add_row(row["policy"], f"{np.median(row['seconds']):.1f}", until, f"{row['accuracy'][-1]:.3f}", turns)
    Console(width=120).print(table)
    print(f"lost: {', '.join(rows[1]['lost']) or 'nobody'}", flush=True)
