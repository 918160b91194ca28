"""`turnout simulate`: policies in a simulated world, over one or many seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.lab.comparing import (
    BaselineOption,
    PromiseOption,
    TargetOption,
    ToleranceOption,
    baseline_index,
    show_comparison,
)
from turnout.cli.lab.measuring import MeasuredPolicy
from turnout.cli.lab.plans import (
    AddressOption,
    BackendOption,
    ConcurrencyOption,
    ConfigOption,
    PoliciesArgument,
    RoundsOption,
    WorldOption,
    contenders,
    read_config,
)
from turnout.cli.lab.playing import Machines, played
from turnout.cli.lab.tracking import TrackOption, Tracks
from turnout.cli.options import DeviceOption, JsonOption, SettingOption, StoreOption, WorkersOption
from turnout.errors import SettingError
from turnout.lab.analysis.judging import first_promise, judged_tolerance
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.sweep import run_id
from turnout.lab.worlds.registry import OUR_WORLDS

POLICIES = ("fair-pace", "random")


def simulate(
    policies: PoliciesArgument = None,
    config: ConfigOption = None,
    settings: SettingOption = None,
    world: WorldOption = None,
    rounds: RoundsOption = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; by default 1, or that of the configuration file.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    concurrency: ConcurrencyOption = None,
    baseline: BaselineOption = None,
    promise: PromiseOption = None,
    tolerance: ToleranceOption = None,
    target: TargetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figures, data and table, and for the store of the runs unless --store is given."),
    ] = None,
    store: StoreOption = None,
    track: TrackOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = "cpu",
    backend: BackendOption = "local",
    address: AddressOption = None,
    json: JsonOption = False,
) -> None:
    """Simulate policies in the same world and compare them (by default fair-pace and random).

    With --seeds, the comparison is made seed by seed, with 95 % confidence intervals. In a world that trains, it has
    accuracies too. With --concurrency there are no rounds: a client is given a turn whenever a slot is free
    (docs/asynchronous.md).

    With --store, runs that the store holds are not repeated, so the same command continues an interrupted one. Every
    run is the same on every backend, byte for byte (docs/simulating.md).

    Example: turnout simulate fair-pace rbcsf:speed_weight=5 random --seeds 5 --rounds 200 --world clients=50
    """
    plans = contenders(policies, config, settings, world, rounds, POLICIES, concurrency)
    if target is not None and plans[0].world in OUR_WORLDS:
        raise SettingError(
            f"--target needs a world that trains, such as --world name=training: {plans[0].world} trains no model"
        )
    count = seeds or (1 if config is None else read_config(config).get("seeds", 1))
    guarantees = [plan.start().policy.guarantee for plan in plans]  # reports invalid settings before the first round
    judged_by = first_promise(guarantees, promise)
    entries = [
        MeasuredPolicy(plan.name, plan.as_dict(), range(seed, seed + count), judged_tolerance(guarantee, tolerance))
        for plan, guarantee in zip(plans, guarantees, strict=True)
    ]
    reference = baseline_index(entries, baseline)
    by_policy = [[replace(plan, seed=each) for each in range(seed, seed + count)] for plan in plans]
    named: dict[str, list[RunPlan]] = {}
    for plan, runs in zip(plans, by_policy, strict=True):
        named.setdefault(plan.name, []).extend(runs)  # labels of a configuration file may be equal
    machines = Machines(workers, device, backend, address)
    with played(named, store, machines, Tracks(track), out=out) as opened:
        entries = [
            replace(entry, runs=[run_id(opened, plan) for plan in runs])
            for entry, runs in zip(entries, by_policy, strict=True)
        ]
        show_comparison(opened, entries, reference, judged_by, target, out, json=json)
