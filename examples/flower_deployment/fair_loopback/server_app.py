"""The server: rounds with Flower's random selection, then fair rounds in which a client is lost and one joins."""

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
from turnout.adapters.flower import FairSelection, VersionSettings, identify_clients

app = ServerApp()


class RecordingFedAvg(FedAvg):
    """Flower's random selection; records the selected nodes of each round."""

    cohorts: list[list[int]]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Records the nodes that Flower selects."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.cohorts.append([message.metadata.dst_node_id for message in messages])
        return messages


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains with both selections and prints a table."""
    config = context.run_config
    out = Path(str(config["out"]) or tempfile.mkdtemp(prefix="fair-loopback-"))
    while len(connected := grid.get_node_ids()) < int(config["nodes"]):
        print(f"{len(connected)} of {config['nodes']} clients are connected", flush=True)
        time.sleep(1)
    print("waiting for the ids of the clients, whose apps are started now", flush=True)
    nodes = identify_clients(grid, patience=600.0)
    rows = [with_flower(grid, config, nodes), with_turnout(grid, config, out)]
    (out / "runs.json").write_text(json.dumps(rows))
    show(rows)


def with_flower(grid: Grid, config: dict, nodes: dict[str, int]) -> dict:
    """Trains with Flower's random selection among all connected nodes."""
    size, names = int(config["cohort-size"]), {node: client for client, node in nodes.items()}
    strategy = RecordingFedAvg(
        fraction_train=1e-9, min_train_nodes=size, min_available_nodes=size, fraction_evaluate=0.0
    )
    strategy.cohorts = []
    curve = train(strategy, grid, int(config["rounds"]))
    turns = Counter(dict.fromkeys(nodes, 0))
    turns.update(names[node] for cohort in strategy.cohorts for node in cohort)
    return {"policy": "Flower's random choice", **curve, "turns": dict(turns), "lost": []}


def with_turnout(grid: Grid, config: dict, out: Path) -> dict:
    """Trains with fair selection; a lost client costs one deadline, and later rounds select among the others.

    With a concurrency there are no rounds: that many clients train at any time, and each update makes a new model.
    """
    slots, promise = int(config["concurrency"]), {"guaranteed_rate": float(config["guaranteed-rate"])}
    if not slots:
        promise["cohort_size"] = int(config["cohort-size"])
    strategy = FedAvg(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    with Scheduler.open(
        out / "fleet.turnout",
        settings=promise,
        deadline=float(config["deadline"]),
        backoff_after=1,
        concurrency=slots or None,
    ) as scheduler:
        fair = FairSelection(strategy, scheduler, versions=VersionSettings(updates_per_version=1 if slots else None))
        curve = train(fair, grid, int(config["fair-rounds"]))
        print(scheduler.status())
        ids, certificate = scheduler.clients, scheduler.certificate()
        lost = sorted(client for client in ids if missed(scheduler, client))
        return {
            "policy": "turnout, FairPace",
            **curve,
            "turns": dict(zip(ids, certificate.turns.tolist(), strict=True)),
            "lost": lost,
            "behind": dict(zip(ids, certificate.behind.tolist(), strict=True)),
        }


def missed(scheduler: Scheduler, client: str) -> bool:
    """Returns whether the last turn of a client was late or failed."""
    turns = scheduler.history(client)
    return bool(turns) and turns[-1].kind in ("late", "failed")


def train(strategy: FedAvg | FairSelection, grid: Grid, rounds: int) -> dict[str, list[float]]:
    """Trains all rounds; returns the duration of each and the accuracy after it."""
    start, seconds, accuracy = time.monotonic(), [], []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy.append(LEARNER.evaluate([arrays["weights"].numpy()])[0])
        seconds.append(time.monotonic() - start)
        return MetricRecord({"accuracy": accuracy[-1]})

    initial = to_record(LEARNER.initial_weights(0))
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, timeout=600, evaluate_fn=evaluate)
    return {"seconds": np.diff(seconds).tolist(), "accuracy": accuracy[1:]}


def show(rows: list[dict]) -> None:
    """Prints a comparison of the two selections, and the lost clients."""
    target = 0.95 * rows[0]["accuracy"][-1]
    table = Table(title="Measured on one machine; during the fair rounds one client was killed and one joined")
    for heading in ("", "round, s", "s to 95 % of random's accuracy", "final accuracy", "turns of each client"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        reached = np.flatnonzero(np.array(row["accuracy"]) >= target)
        until = f"{np.cumsum(row['seconds'])[reached[0]]:.1f}" if len(reached) else "never"
        turns = " ".join(f"{client}:{count}" for client, count in sorted(row["turns"].items()))
        table.add_row(row["policy"], f"{np.median(row['seconds']):.1f}", until, f"{row['accuracy'][-1]:.3f}", turns)
    Console(width=120).print(table)
    print(f"lost: {', '.join(rows[1]['lost']) or 'none'}", flush=True)
