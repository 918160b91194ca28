"""The terms of a certificate must follow from the settings in its header; hostile files are refused clearly (F11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.in_process import run
from hostile import run_limited
from live.audit.test_explain import play
from live.fleets import World
from turnout.live import Scheduler
from turnout.live.audit import verify
from turnout.live.audit.certify import _terms, certify
from turnout.live.features import PAPER_FEATURES
from turnout.live.journal.replay import fresh_fleet
from turnout.live.settings import SchedulerSettings

Header = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The record of a small fleet."""
    folder = tmp_path_factory.mktemp("terms")
    settings = {"cohort_size": 3, "guaranteed_rate": 0.2}
    with Scheduler.open(folder / "fleet", policy="rbcsf", settings=settings, deadline=20.0) as scheduler:
        play(scheduler, World(8), 1, 10)
    certify(folder / "fleet", folder / "c.json", folder / "c.jsonl")
    return (folder / "c.jsonl").read_bytes()


@pytest.fixture
def events(written: bytes) -> list[dict[str, Any]]:
    """The lines of the record."""
    return [json.loads(line) for line in written.splitlines()]


def as_record(events: list[dict[str, Any]]) -> list[bytes]:
    return [f"{json.dumps(event)}\n".encode() for event in events]


def certificate_of(record: list[bytes]) -> bytes:
    """Returns a certificate that agrees with the record, whatever its terms are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "check_terms", lambda *_: None)
        return json.dumps(verify.recount(record)).encode()


def change_term(key: str, value: Any) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        assert header["terms"][key] != value
        header["terms"][key] = value

    return change


def change_policy(header: Header) -> None:
    header["policy"] = "fair-pace"


FORGERIES: dict[str, tuple[Callable[[Header], None], str]] = {
    "a lower rate": (change_term("rate_units", 0), "rate_units of the terms do not follow from guaranteed_rate"),
    "rates of clients": (change_term("rate_units", [1] * 8), "there must be one rate, or one for each client"),
    "larger turns": (change_term("units_per_turn", 6), "rate_units of the terms do not follow from guaranteed_rate"),
    "no units": (change_term("units_per_turn", 0), "a turn has no units"),
    "units as a float": (change_term("units_per_turn", 5.5), "the units are not 64-bit integers"),
    "huge units": (change_term("units_per_turn", 10**30), "the units are not 64-bit integers"),
    "a higher tolerance": (change_term("tolerance", "3"), "the tolerance of the terms is not that of the settings"),
    "a tolerance as a number": (change_term("tolerance", 2), "the tolerance of the terms is not a fraction"),
    "an endless tolerance": (change_term("tolerance", "1e999999999"), "OverflowError"),
    "a tiny tolerance": (change_term("tolerance", "1e-999999999"), "the tolerance of the terms is not a fraction"),
    "accrual": (change_term("accrual", "always"), "accrual of the terms is not that of the settings"),
    "counts": (change_term("counts", "chosen"), "counts of the terms is not that of the settings"),
    "a lower cap": (change_term("cap_units", 1), "cap_units of the terms do not follow from max_owed"),
    "no cap": (change_term("cap_units", None), "cap_units of the terms do not follow from max_owed"),
    "the policy": (change_policy, "the policy is not that of the settings"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_terms_that_do_not_follow_from_the_settings_are_reported(events: list[dict[str, Any]], name: str) -> None:
    change, problem = FORGERIES[name]
    assert verify.differences(certificate_of(as_record(events)), as_record(events)) == []
    change(events[0])
    record = as_record(events)
    # Computing with the first two would take for ever; the last is refused before anything is counted.
    uncounted = ("an endless tolerance", "a tiny tolerance", "the policy")
    certificate = b'{"clients": {}}' if name in uncounted else certificate_of(record)
    (difference,) = verify.differences(certificate, record)
    assert difference.startswith("these files are not a certificate and its record (")
    assert problem in difference


SETTINGS: list[dict[str, Any]] = [
    {},
    {"deadline": 7.5},
    {"deadline": "auto"},
    *({"settings": {"guaranteed_rate": rate}} for rate in (0, 0.0, 1e-05, 0.15, "2/7", "1e-1", "0.125", 1 / 3)),
    *({"settings": {"tolerance": tolerance}} for tolerance in (0.3, 1, 7.25, 1e6)),
    {"settings": {"max_owed": 2.7, "accrual": "always", "counts": "selected"}},
    {"settings": {"max_owed": None}},
    {"settings": {"guaranteed_rate": [0.1, "1/7", 0.25, 0.1]}},
    {"settings": {"guaranteed_rate": [1 / 3, 0.123456789, 0.1234567891, 0.2]}},
    {"policy": "rbcsf"},
    {"policy": "rbcsf", "deadline": 100, "settings": {"speed_weight": 3.3}},
    {"policy": "rbcsf", "settings": {"speed_weight": 1e9, "guaranteed_rate": "1/6"}},
    {"policy": "rbcsf", "settings": {"max_owed": 1.5, "tolerance": 0.4}},
    {"policy": "cs-ucb-q", "settings": {"fairness_weight": 0.5}},
    {"policy": "with-guarantee", "settings": {"policy": "random"}},
    {
        "policy": "with-guarantee",
        "settings": {"policy": "oort", "guaranteed_rate": 0.05, "max_owed": 3, "tolerance": 4},
    },
    {"policy": "with-guarantee", "settings": {"policy": "rbcsf", "settings": {"guaranteed_rate": 0.3}}},
    {"policy": "cool-down", "settings": {"policy": "rbcsf", "rounds": 2, "settings": {"speed_weight": 2.0}}},
    {
        "policy": "cool-down",
        "settings": {
            "policy": "with-guarantee",
            "rounds": 2,
            "settings": {"policy": "warm-up", "guaranteed_rate": 0.1, "settings": {"policy": "oort"}},
        },
    },
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_the_terms_of_every_fleet_follow_from_its_settings(options: dict[str, Any]) -> None:
    settings = SchedulerSettings.from_kwargs(options)
    fleet = fresh_fleet(settings, PAPER_FEATURES)
    fleet.join(["a", "b", "c", "d"])
    stored = json.loads(json.dumps(settings.to_dict()))
    terms = json.loads(json.dumps(_terms(fleet.policy)))
    verify.check_terms(stored, terms)
    for key, value in (("units_per_turn", 7 * terms["units_per_turn"] + 1), ("cap_units", 12_345_678), ("counts", "x")):
        if key != "units_per_turn" or terms["rate_units"] != 0:
            with pytest.raises(ValueError, match=r"of the terms"):
                verify.check_terms(stored, {**terms, key: value})


def test_a_certificate_of_an_unknown_policy_is_verified(events: list[dict[str, Any]]) -> None:
    foreign = json.loads(json.dumps(events))
    foreign[0]["policy"] = foreign[0]["settings"]["policy"] = "package.module:Policy"
    foreign[0]["terms"]["cap_units"] = 77
    record = as_record(foreign)
    assert verify.differences(certificate_of(record), record) == []


# F11


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "", "null", "1e400", '{"clients": 5}', '{"clients": {"a": 1e400}}'],
)
def test_a_hostile_certificate_or_record_is_reported_in_one_line(
    events: list[dict[str, Any]], tmp_path: Path, text: str
) -> None:
    certificate, record, hostile = tmp_path / "c.json", tmp_path / "c.jsonl", tmp_path / "hostile"
    record.write_bytes(b"".join(as_record(events)))
    certificate.write_bytes(certificate_of(as_record(events)))
    hostile.write_text(f"{text}\n")
    for files in ((hostile, record), (certificate, hostile), (hostile, hostile)):
        output, errors, code = run("verify", *files)
        assert (errors, code) == ("", 1)
        lines = output.splitlines()
        assert lines[-1] == "NOT verified."
        assert all(len(line) < 1100 for line in lines)


def test_an_endless_certificate_takes_little_memory() -> None:
    code, output, errors = run_limited("verify", "/dev/zero", "/dev/zero")
    assert (code, errors) == (1, "")
    assert output.splitlines()[-1] == "NOT verified."
