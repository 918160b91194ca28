from __future__ import annotations

from typing import Any

import pytest

from policies.examples import Contract
from turnout import check_policy
from turnout.policies import check_support, checks


@pytest.fixture(params=[8, pytest.param(check_support.ROUNDS, marks=pytest.mark.thorough)], ids="{}-rounds".format)
def few_rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `check_policy` play fewer rounds: enough to use every slot twice."""
    for module in (checks, check_support):
        monkeypatch.setattr(module, "ROUNDS", request.param)


@pytest.fixture
def contract(few_rounds: None) -> Contract:  # noqa: ARG001
    """Returns a function that requires a policy to satisfy the contract, in fewer rounds than `check_policy` plays."""

    def check(build: Any) -> None:
        assert len(check_policy(build)) == len(checks.CHECKS)

    return check
