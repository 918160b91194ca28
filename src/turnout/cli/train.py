"""`turnout train`: a model, trained by the clients a policy chooses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.options import JsonOption, SeedOption, SettingOption, contenders, print_json, progress_bar, resumable
from turnout.kernel.rounds import RoundRecord
from turnout.lab.datasets import SOURCES
from turnout.simulator.metrics import summarise
from turnout.simulator.plans import RunPlan
from turnout.simulator.play import play
from turnout.simulator.sweep import play_into
from turnout.store import RoundColumns, RunStore


def train(
    policy: Annotated[str, typer.Argument(help="The policy that chooses.")] = "rbcsf",
    dataset: Annotated[str, typer.Option(help=f"{', '.join(SOURCES)}.")] = "digits",
    gamma: Annotated[str, typer.Option(help="How unevenly classes are held: a number (small is uneven) or iid.")] = "1",
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 100,
    seed: SeedOption = 0,
    rate: Annotated[float, typer.Option(help="The learning rate of the clients.")] = 0.1,
    batch: Annotated[int, typer.Option(min=1, help="Their batch size.")] = 32,
    epochs: Annotated[int, typer.Option(min=1, help="Their epochs a round.")] = 1,
    hidden: Annotated[int, typer.Option(min=0, help="Hidden units of the model; 0 is softmax regression.")] = 32,
    settings: SettingOption = None,
    folder: Annotated[Path | None, typer.Option(help="Where the dataset is, if not in the known places.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the run in this store; a stopped run goes on.")] = None,
    json: JsonOption = False,
) -> None:
    """Train a small NumPy model in the paper's world, and show accuracy against simulated time."""
    world: dict[str, Any] = {"dataset": dataset, "gamma": gamma, "rate": rate, "batch": batch, "epochs": epochs}
    world |= {"hidden": hidden} | ({} if folder is None else {"folder": str(folder)})
    chosen = contenders([policy], None, settings, None, rounds, ())[0]
    plan = RunPlan(policy, rounds, seed, chosen.settings, world="training", world_settings=world)
    plan.build()  # what cannot be played is refused before anything is
    columns = _trained(plan) if save is None else _trained_into(save, plan)
    told = _told(plan, columns)
    if json:
        print_json(told)
        return
    Console().print(
        f"{dataset}, {policy}: accuracy {told['accuracy']:.3f} after {rounds} rounds and {told['minutes']:.1f} "
        f"simulated minutes (best {told['best_accuracy']:.3f} in round {told['best_round']}); the least-chosen client "
        f"had {told['least_share']:.3f} of the rounds.",
        highlight=False,
        soft_wrap=True,
    )


def _trained(plan: RunPlan) -> RoundColumns:
    policy, world = plan.build()
    with progress_bar() as progress:
        task = progress.add_task("Training", total=plan.rounds)

        def watched() -> Iterator[RoundRecord]:
            for record in play(policy, world, plan.rounds):
                accuracy = record.report.metrics["accuracy"]
                progress.update(task, advance=1, description=f"Training, accuracy {accuracy:.3f}")
                yield record

        return RoundColumns.from_records(watched(), clients=world.clients)


def _trained_into(path: Path, plan: RunPlan) -> RoundColumns:
    with resumable(), RunStore(path) as store, progress_bar() as progress:
        task = progress.add_task("Training", total=plan.rounds)
        run = play_into(store, plan, every=10, watch=lambda done: progress.update(task, completed=done))
        return store.columns(run)


def _told(plan: RunPlan, columns: RoundColumns) -> dict[str, Any]:
    accuracies = columns.metrics["accuracy"]
    best = int(accuracies.argmax())
    return {
        "policy": plan.policy,
        **plan.world_settings,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "accuracy": float(accuracies[-1]),
        "best_accuracy": float(accuracies[best]),
        "best_round": best + 1,
        "minutes": float(columns.durations.sum() / 60),
        "least_share": summarise(columns, guaranteed_rate=0).least_share,
        "accuracies": accuracies.tolist(),
    }
