"""Recorded selections of every policy, so that no selection changes unnoticed; --record-traces records them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.examples import played
from turnout import POLICIES, make_policy
from turnout.kernel.backend import using_kernel
from turnout.policies.check_support import SmallFleet

TRACES = Path(__file__).parent / "traces"
ROUNDS = 60
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in POLICIES},
    "fedcs-learned": ("fedcs", {"estimates": "learned", "deadline": 9.0}),
    "rbcsf-horizon": ("rbcsf", {"horizon": ROUNDS}),
    "rbcsf-horizon-live": ("rbcsf", {"horizon": ROUNDS, "accrual": "available", "counts": "completed"}),
    "rbcsf-live": ("rbcsf", {"accrual": "available", "max_owed": 3, "counts": "completed", "forgetting": 0.95}),
    "rbcsf-prior": ("rbcsf", {"prior": "fleet"}),
}


def selections(variant: str) -> list[list[int]]:
    name, settings = VARIANTS[variant]
    policy = make_policy(name, 40, **settings)
    fleet = SmallFleet(seed=1, deadline=25.0, failure_rate=0.05, losses=True)
    chosen = []
    for _, selection, _ in played(policy, fleet, ROUNDS):
        chosen.append(selection.clients.tolist())
        assert all(len(reason) == len(chosen[-1]) for reason in selection.reasons.values() if reason.ndim)
    return chosen


#: The numpy kernel gives the same selections by other code only where a kernel computes cohorts, prices or estimates.
WITH_KERNEL = ("fair-pace", "rbcsf", "fair-oracle", "fedcs-learned")
CASES = [
    pytest.param(
        variant, kernel, marks=[] if kernel == "compiled" or variant.startswith(WITH_KERNEL) else pytest.mark.thorough
    )
    for variant in VARIANTS
    for kernel in ("compiled", "numpy")
]


@pytest.mark.parametrize(("variant", "kernel"), CASES)
def test_a_policy_selects_what_was_recorded(variant: str, kernel: str, request: pytest.FixtureRequest) -> None:
    path = TRACES / f"{variant}.json"
    with using_kernel(kernel):
        current = selections(variant)
    if request.config.getoption("--record-traces"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(cohort) for cohort in current) + "\n]\n")
    assert current == json.loads(path.read_text())


def test_every_recorded_trace_belongs_to_a_policy() -> None:
    assert {path.stem for path in TRACES.glob("*.json")} == set(VARIANTS)
