"""Groups of stored runs that can be compared: the same policy and settings, one run per seed, in the same world."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from turnout.cli.lab.comparing import ContenderRuns
from turnout.cli.lab.measuring import Contender
from turnout.errors import SettingError
from turnout.lab.analysis.judging import guarantee_of_run, judged_tolerance
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import RunPlan


def group_runs(infos: Sequence[RunInfo], tolerance: float | None) -> list[ContenderRuns]:
    """Returns one contender per policy, with the seeds that all of them have; says if some are left out.

    Args:
        infos: The runs.
        tolerance: The tolerance by which all are judged; None for that of each policy.

    Raises:
        SettingError: If the runs cannot be compared: different worlds, two runs of one seed, or no common seed.
    """
    groups: dict[str, dict[int, RunInfo]] = {}
    for info in infos:
        by_seed = groups.setdefault(_key(info, ("policy", "settings", "label")), {})
        seed = int(info.plan.get("seed", 0))
        if seed in by_seed:
            raise SettingError(
                f"run {by_seed[seed].id} and run {info.id} are of the same policy and seed: name the runs to compare"
            )
        by_seed[seed] = info
    if not groups:
        raise SettingError("there is no run with rounds to compare: play one first")
    if len({_key(info, ("world", "world_settings", "concurrency")) for info in infos}) > 1:
        raise SettingError(
            "these runs belong to different worlds, so their times cannot be compared: name runs of one world"
        )
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in groups.values())))
    if not seeds:
        raise SettingError("these policies have no seed in common: name other runs")
    left_out = sum(len(by_seed) for by_seed in groups.values()) - len(seeds) * len(groups)
    if left_out:
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"{left_out} run{'s are' if left_out > 1 else ' is'} left out: only seeds that all policies have are "
            f"compared, {', '.join(map(str, seeds))}"
        )
    return [_contender([by_seed[seed] for seed in seeds], seeds, tolerance) for by_seed in groups.values()]


def _contender(infos: Sequence[RunInfo], seeds: Sequence[int], tolerance: float | None) -> ContenderRuns:
    plan = infos[0].plan
    allowed = judged_tolerance(guarantee_of_run(infos[0]), tolerance)
    return ContenderRuns(Contender(RunPlan.from_dict(plan).name, plan, seeds, allowed), [info.id for info in infos])


def _key(info: RunInfo, names: Sequence[str]) -> str:
    return json.dumps([info.plan.get(name) for name in names], sort_keys=True)
