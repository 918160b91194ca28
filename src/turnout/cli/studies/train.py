"""`turnout study train`: trains a model with the clients that a policy selects."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.completion import complete_datasets, complete_policies
from turnout.cli.interruption import resumable
from turnout.cli.lab.plans import contenders
from turnout.cli.naming import parse_setting
from turnout.cli.options import (
    DeviceOption,
    JsonOption,
    SeedOption,
    SettingOption,
    StoreOption,
    WorkersOption,
    print_json,
    progress_bar,
)
from turnout.errors import SettingError
from turnout.kernel.rounds import RoundRecord
from turnout.lab.analysis.learning_curves import LearningCurve
from turnout.lab.analysis.metrics import summarise
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.studies.paper.accuracy import find_tasks
from turnout.lab.training.batched import train_plans
from turnout.lab.training.checkpoint import write_model
from turnout.lab.training.datasets import SOURCES
from turnout.lab.training.learner_cache import MODELS, LearnerCache
from turnout.lab.training.learners.base import Layout
from turnout.lab.training.world import TrainingWorld


def train(
    policy: Annotated[str, typer.Argument(help="Name of the policy.", autocompletion=complete_policies)] = "fair-pace",
    dataset: Annotated[
        str, typer.Option(help=f"Dataset: {', '.join(SOURCES)}.", autocompletion=complete_datasets)
    ] = "digits",
    settings: SettingOption = None,
    world: Annotated[
        list[str] | None,
        typer.Option(
            "--world",
            metavar="NAME=VALUE",
            help="A setting of the training, such as gamma=0.5 (a small one splits the data unevenly; iid: evenly), "
            f"model={'|'.join(MODELS)}, rate=0.05, batch=32, epochs=2, items=100 or proximal=0.1; by default that of "
            "the study. Repeatable; turnout worlds training lists them.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 100,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    store: StoreOption = None,
    weights: Annotated[Path | None, typer.Option(help="File (.npz) for the trained model.")] = None,
    json: JsonOption = False,
) -> None:
    """Train a model in the paper's world, and print its accuracy and the simulated time in minutes.

    Settings default to those of the study of the dataset: turnout study reproduce accuracy.

    Example: turnout study train fair-pace --dataset digits --rounds 50 --store runs.turnout
    """
    given = dict(map(parse_setting, world or []))
    own = {"dataset": dataset, "gamma": 1, "epochs": 1, **_study_settings(dataset, given.get("model")), **given}
    named = contenders([policy], None, settings, None, rounds, ())[0]
    plan = RunPlan(named.policy, rounds, seed, named.settings, world="training", world_settings=own)
    if weights is not None and not weights.parent.is_dir():
        raise SettingError(f"cannot write the model: the folder {weights.parent} does not exist")
    network = _network(plan, device)
    with resumable(saved=store is not None), tempfile.TemporaryDirectory() as temporary:
        columns, trained = _train(plan, store or Path(temporary) / "run.turnout", device, workers)
    if weights is not None:
        if trained is None:
            raise SettingError(f"{store} holds this run without its model: train with another --store")
        write_model(weights, network, trained)
    result = _result(plan, columns)
    if json:
        print_json(result)
        return
    Console().print(
        f"{dataset}, {policy}: accuracy {result['accuracy']:.3f} in round {result['measured_rounds'][-1]} (best "
        f"{result['best_accuracy']:.3f} in round {result['best_round']}); {rounds} rounds took "
        f"{result['minutes']:.1f} simulated minutes; the least selected client took part in a share of "
        f"{result['least_share']:.3f} of the rounds.",
        highlight=False,
        soft_wrap=True,
    )


def _study_settings(dataset: str, model: str | None) -> dict[str, Any]:
    """Returns the settings of the study of the dataset that apply to this model."""
    settings = dict(find_tasks([dataset])[0].settings)
    settings["evaluate_every"] = 1 if dataset == "digits" else settings["evaluate_every"]
    if model is not None and model != settings.get("model", "mlp"):
        return {"items": settings["items"], "evaluate_every": settings["evaluate_every"]}
    return settings


def _network(plan: RunPlan, device: str) -> Layout:
    """Returns the network of a plan; reports invalid settings before training starts."""
    with LearnerCache(device, workers=1):
        world = plan.build()[1]
        assert isinstance(world, TrainingWorld)
        return world.federation.learner.network


def _train(plan: RunPlan, path: Path, device: str, workers: int | None) -> tuple[RoundColumns, Any]:
    with RunStore(path) as store, progress_bar() as progress:
        info = store.find(plan.key)
        task = progress.add_task("Training", total=plan.rounds, completed=0 if info is None else info.rounds)

        def watch(_: RunPlan, record: RoundRecord) -> None:
            accuracy = record.report.metrics.get("accuracy")
            description = None if accuracy is None else f"Training, accuracy {accuracy:.3f}"
            progress.update(task, completed=record.report.round, description=description)

        (run,) = train_plans([plan], store, device=device, workers=workers, keep_models=True, on_round=watch)
        saved = store.snapshot(run)
        return store.columns(run), None if saved is None else saved[1].get("world.weights")


def _result(plan: RunPlan, columns: RoundColumns) -> dict[str, Any]:
    curve = LearningCurve.of(columns)
    best = int(curve.accuracies.argmax())
    return {
        "policy": plan.policy,
        **plan.world_settings,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "accuracy": float(curve.accuracies[-1]),
        "best_accuracy": float(curve.accuracies[best]),
        "best_round": int(curve.rounds[best]),
        "minutes": curve.duration,
        "least_share": summarise(columns, guaranteed_rate=0).least_share,
        "measured_rounds": curve.rounds.tolist(),
        "accuracies": curve.accuracies.tolist(),
    }
