from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.guarantee import Guarantee, GuaranteeSettings
from turnout.kernel.pace.bounds import ABSENT, FAILING, Circumstances


@pytest.mark.parametrize("rate", [0, 1, 0.15, "3/20", Fraction(3, 20), np.float32(0.25), [0.1, 0.2], ["1/4", "1/3"]])
def test_every_form_of_a_rate_is_accepted(rate: Any) -> None:
    rates = Guarantee(rate).queues(2).guaranteed_rates
    expected = [float(Fraction(each)) for each in rate] if isinstance(rate, list) else [float(Fraction(str(rate)))] * 2
    assert rates.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1.5}, r"guaranteed_rate must lie in \[0, 1\], not 1.5"),
        ({"rate": -0.1}, r"guaranteed_rate must lie in \[0, 1\], not -0.1"),
        ({"rate": [0.1, 2.0]}, r"guaranteed_rate must lie in \[0, 1\], not 2.0"),
        ({"rate": "often"}, "guaranteed_rate must be a number or a fraction such as '3/20', not 'often'"),
        ({"rate": None}, "guaranteed_rate must be a number or a fraction such as '3/20', not None"),
        ({"rate": float("nan")}, "guaranteed_rate must be a number"),
        ({"rate": [[0.1, 0.2], [0.1, 0.2]]}, r"guaranteed_rate must be one rate or one per client, not shape \(2, 2\)"),
        ({"rate": [[0.1], [0.1, 0.2]]}, "guaranteed_rate must be one rate or one per client: "),
        ({"accrual": "never"}, "accrual must be 'always' or 'available', got 'never'"),
        ({"counts": "later"}, "counts must be 'selected' or 'completed', got 'later'"),
        ({"max_owed": -1}, "max_owed must be at least 0, not -1"),
        ({"max_owed": Fraction(-1, 2)}, "max_owed must be at least 0, not -0.5"),
        ({"max_owed": float("inf")}, "max_owed must be finite, not inf"),
        ({"max_owed": "many"}, "max_owed must be a number, not 'many'"),
        ({"max_owed": True}, "max_owed must be a number, not True"),
        ({"availability": 1.5}, r"availability\[0\] = 1.5 must lie in \[0, 1\]"),
        ({"availability": [0.5, -0.5]}, r"availability\[1\] = -0.5 must lie in \[0, 1\]"),
        ({"availability": "often"}, "availability must hold numbers"),
        ({"allow_infeasible": "yes"}, "allow_infeasible must be True or False, got 'yes'"),
    ],
)
def test_invalid_values_are_refused_on_construction(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Guarantee(**{"rate": 0.1, **values})


def test_a_guarantee_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Guarantee(0.1).rate = 0.2  # type: ignore[misc]


def test_settings_that_are_missing_have_the_values_of_the_paper() -> None:
    guarantee = Guarantee.from_settings({})
    assert (guarantee.rate, guarantee.accrual, guarantee.counts, guarantee.max_owed) == (
        0.15,
        "always",
        "selected",
        None,
    )
    assert not guarantee.allow_infeasible


def test_every_setting_reaches_the_guarantee_and_its_queues() -> None:
    settings: GuaranteeSettings = {
        "guaranteed_rate": "1/4",
        "tolerance": Fraction(3, 2),
        "accrual": "available",
        "max_owed": Fraction(5, 2),
        "counts": "completed",
        "availability": 0.5,
        "allow_infeasible": True,
    }
    guarantee = Guarantee.from_settings(settings)
    values = {field.name: getattr(guarantee, field.name) for field in dataclasses.fields(guarantee)}
    assert values == {"rate": "1/4", **{name: value for name, value in settings.items() if name != "guaranteed_rate"}}
    queues = guarantee.queues(3)
    assert (queues.clients, queues.accrual, queues.max_owed) == (3, "available", Fraction(5, 2))
    assert queues.guaranteed_rates.tolist() == [0.25] * 3


@pytest.mark.parametrize("name", ["rate", "speed_weight", "max_debt"])
def test_an_unknown_setting_raises_type_error(name: str) -> None:
    unknown: Any = {name: 1}
    with pytest.raises(TypeError, match=name):
        Guarantee.from_settings(unknown)


def test_rates_that_no_policy_could_keep_are_refused_unless_allowed() -> None:
    for availability, rate in ((None, 0.6), (0.5, 0.51)):
        guarantee = Guarantee(rate, accrual="always", availability=availability)
        with pytest.raises(InfeasiblePromise):
            guarantee.require_feasible(guarantee.queues(4), 2)
        allowed = dataclasses.replace(guarantee, allow_infeasible=True)
        allowed.require_feasible(allowed.queues(4), 2)
    feasible = Guarantee(0.5, accrual="available", availability=0.5)
    feasible.require_feasible(feasible.queues(4), 2)


def test_the_bound_is_that_of_the_terms_of_the_promise() -> None:
    proved = Guarantee("1/4", accrual="available", counts="selected").proved_bound(9, 4)
    assert (proved.turns, proved.reason) == (2.25, "")
    assert Guarantee("1/4", tolerance=3, counts="selected").proved_bound(9, 4).turns == 3.25
    assert Guarantee(["1/4"] * 8 + ["1/5"], counts="selected").proved_bound(9, 4).turns == pytest.approx(2.3)
    assert Guarantee("1/4", accrual="always", counts="selected").proved_bound(9, 4).counterexample == ABSENT
    assert Guarantee("1/4").proved_bound(9, 4).counterexample == FAILING
    known = Circumstances(failures=1, in_a_row=1)
    assert Guarantee("1/8").proved_bound(9, 4, known).turns == pytest.approx(2 + 1 / 8 + 1 / 4 * 7 / 3)


def test_one_availability_per_client_must_be_one_for_each() -> None:
    guarantee = Guarantee(0.1, availability=[0.5, 0.5])
    with pytest.raises(SettingError, match="availability has 2 rows, but there are 4 clients"):
        guarantee.require_feasible(guarantee.queues(4), 2)
