from __future__ import annotations

from typing import Any

import pytest

from policies.examples import Contract
from turnout import check_policy
from turnout.policies import checks


@pytest.fixture(params=[12, pytest.param(checks.ROUNDS, marks=pytest.mark.thorough)], ids="{}-rounds".format)
def contract(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Contract:
    """Returns a function that requires a policy to satisfy the contract, in fewer rounds than `check_policy` plays."""
    monkeypatch.setattr(checks, "ROUNDS", request.param)

    def check(build: Any) -> None:
        assert len(check_policy(build)) == len(checks.CHECKS)

    return check
