"""`turnout train`: a model, trained by the clients a policy chooses."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from turnout.analysis.metrics import summarise
from turnout.cli.options import (
    DeviceOption,
    JsonOption,
    SeedOption,
    SettingOption,
    WorkersOption,
    contenders,
    print_json,
    progress_bar,
    resumable,
)
from turnout.errors import SettingError
from turnout.experiments.paper.accuracy import find_tasks
from turnout.kernel.rounds import RoundRecord
from turnout.lab.batched import train_plans
from turnout.lab.checkpoint import write_model
from turnout.lab.datasets import SOURCES
from turnout.lab.learner_cache import MODELS, LearnerCache
from turnout.lab.learners.networks import Network
from turnout.lab.world import TrainingWorld
from turnout.simulator.plans import RunPlan
from turnout.store import RoundColumns, RunStore


def train(
    policy: Annotated[str, typer.Argument(help="The policy that chooses.")] = "rbcsf",
    dataset: Annotated[str, typer.Option(help=f"{', '.join(SOURCES)}.")] = "digits",
    gamma: Annotated[str, typer.Option(help="How unevenly classes are held: a number (small is uneven) or iid.")] = "1",
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 100,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"{' or '.join(MODELS)}: small with NumPy, or the paper's with torch; by default as studied."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="The learning rate of the clients; by default as studied.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Their batch size; by default as studied.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Their epochs a round.")] = 1,
    items: Annotated[int | None, typer.Option(min=1, help="How many items each holds; by default as studied.")] = None,
    hidden: Annotated[int | None, typer.Option(min=0, help="Hidden units of mlp; 0 is softmax regression.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of their descent.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of their descent.")] = None,
    proximal: Annotated[float | None, typer.Option(help="FedProx: how strongly they stay near what was sent.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Measure accuracy every so many rounds.")] = None,
    settings: SettingOption = None,
    folder: Annotated[Path | None, typer.Option(help="Where the dataset is, if not in the known places.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the run in this store; a stopped run goes on.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Write the trained model to this npz file.")] = None,
    json: JsonOption = False,
) -> None:
    """Train a model in the paper's world, and show its accuracy and the simulated time.

    What is not said is as in the study of the dataset: turnout reproduce accuracy.
    """
    own = {
        "model": model,
        "rate": rate,
        "batch": batch,
        "items": items,
        "hidden": hidden,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "proximal": proximal,
        "evaluate_every": evaluate_every,
        "folder": None if folder is None else str(folder),
    }
    world = {"dataset": dataset, "gamma": gamma, "epochs": epochs, **_studied(dataset, model)}
    world |= {name: value for name, value in own.items() if value is not None}
    chosen = contenders([policy], None, settings, None, rounds, ())[0]
    plan = RunPlan(policy, rounds, seed, chosen.settings, world="training", world_settings=world)
    if weights is not None and not weights.parent.is_dir():
        raise SettingError(f"there is no folder {weights.parent} to write the model to")
    network = _network(plan, device)
    with tempfile.TemporaryDirectory() as nowhere:
        columns, trained = _trained(plan, save or Path(nowhere) / "run.turnout", device, workers)
    if weights is not None:
        if trained is None:
            raise SettingError(f"{save} holds this run, but not its model: train again into another store")
        write_model(weights, network, trained)
    told = _told(plan, columns)
    if json:
        print_json(told)
        return
    Console().print(
        f"{dataset}, {policy}: accuracy {told['accuracy']:.3f} in round {told['measured_rounds'][-1]} (best "
        f"{told['best_accuracy']:.3f} in round {told['best_round']}); {rounds} rounds took {told['minutes']:.1f} "
        f"simulated minutes, and the least-chosen client had {told['least_share']:.3f} of them.",
        highlight=False,
        soft_wrap=True,
    )


def _studied(dataset: str, model: str | None) -> dict[str, Any]:
    """The settings of the study, as far as they are for this model."""
    settings = dict(find_tasks([dataset])[0].settings)
    settings["evaluate_every"] = 1 if dataset == "digits" else settings["evaluate_every"]
    if model is not None and model != settings.get("model", "mlp"):
        return {"items": settings["items"], "evaluate_every": settings["evaluate_every"]}
    return settings


def _network(plan: RunPlan, device: str) -> Network:
    """What is trained; a plan that cannot be played is refused before anything is."""
    with LearnerCache(device, workers=1):
        world = plan.build()[1]
        assert isinstance(world, TrainingWorld)
        return world.federation.learner.network


def _trained(plan: RunPlan, path: Path, device: str, workers: int | None) -> tuple[RoundColumns, Any]:
    with resumable(), RunStore(path) as store, progress_bar() as progress:
        found = store.find(plan.key)
        task = progress.add_task("Training", total=plan.rounds, completed=0 if found is None else found.rounds)

        def watch(_: RunPlan, record: RoundRecord) -> None:
            accuracy = record.report.metrics.get("accuracy")
            words = {} if accuracy is None else {"description": f"Training, accuracy {accuracy:.3f}"}
            progress.update(task, completed=record.report.round, **words)  # type: ignore[arg-type]

        (run,) = train_plans([plan], store, device=device, workers=workers, keep_models=True, on_round=watch)
        saved = store.snapshot(run)
        return store.columns(run), None if saved is None else saved[1].get("world.weights")


def _told(plan: RunPlan, columns: RoundColumns) -> dict[str, Any]:
    measured = columns.metrics.get("accuracy", np.full(len(columns.rounds), np.nan))
    rounds = np.flatnonzero(~np.isnan(measured))
    if not len(rounds):
        raise SettingError(f"accuracy was never measured in {plan.rounds} rounds: lower --evaluate-every")
    accuracies = measured[rounds]
    best = int(accuracies.argmax())
    return {
        "policy": plan.policy,
        **plan.world_settings,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "accuracy": float(accuracies[-1]),
        "best_accuracy": float(accuracies[best]),
        "best_round": int(rounds[best]) + 1,
        "minutes": float(columns.durations.sum() / 60),
        "least_share": summarise(columns, guaranteed_rate=0).least_share,
        "measured_rounds": (rounds + 1).tolist(),
        "accuracies": accuracies.tolist(),
    }
