"""The terms of a certificate must follow from the settings in its header; hostile files are refused clearly (F11)."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.in_process import run
from hostile import run_limited
from live import restless_server
from live.audit.test_explain import play
from live.fleets import OpenFleet, World, offered, play_round, take_snapshot
from live.forging import forge_snapshot
from live.serving import EACH_PART, PARTS
from postgres import tables
from turnout.errors import SettingError, StoreError
from turnout.live import FleetReader, Scheduler
from turnout.live.audit import verify
from turnout.live.audit.certify import _terms, certify
from turnout.live.features import PAPER_FEATURES
from turnout.live.journal.replay import fresh_fleet
from turnout.live.settings import SchedulerSettings

HERE = Path(__file__).parents[1]
CHANGES: dict[type, Any] = {
    int: lambda value: value + 1,
    float: lambda value: value + 1.0,
    str: lambda value: f"{value}x",
}


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet in which every kind of event happens, its certificate and its record."""
    folder = tmp_path_factory.mktemp("certified")
    restless_server.play(str(folder / "fleet.turnout"), 13)
    certify(folder / "fleet.turnout", folder / "certificate.json", folder / "record.jsonl")
    return folder


def verify_files(certificate: bytes, record: bytes) -> list[str]:
    return verify.differences(certificate, record.splitlines(keepends=True))


def read_files(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "certificate.json").read_bytes(), (folder / "record.jsonl").read_bytes()


def mutations(value: Any) -> Iterator[Any]:
    """Yields the same JSON with one change each: a value or a key changed, an entry removed or added."""
    if isinstance(value, dict):
        for key, entry in value.items():
            others = {name: kept for name, kept in value.items() if name != key}
            yield others
            yield {**others, f"{key}x": entry}
            for mutation in mutations(entry):
                yield {**value, key: mutation}
        yield {**value, "another": None}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield value[:index] + value[index + 1 :]
            yield [*value, item]
            for mutation in mutations(item):
                yield [*value[:index], mutation, *value[index + 1 :]]
    elif isinstance(value, bool):
        yield from (not value, int(value))
    elif value is None:
        yield from (0, False, "")
    else:
        yield CHANGES[type(value)](value)
        yield None
        if isinstance(value, int):
            yield float(value)


def test_a_certificate_agrees_with_its_record_and_its_scheduler(certified: Path) -> None:
    certificate, record = read_files(certified)
    assert verify_files(certificate, record) == []
    content = json.loads(certificate)
    assert content["record_sha256"] == hashlib.sha256(record).hexdigest()
    assert content["events"] == len(record.splitlines()) - 1
    with FleetReader(certified / "fleet.turnout") as reader:
        counted, ids = reader.certificate(), reader.clients
        assert content["rounds"] == reader.round
        assert list(reader.export()) == [json.loads(line) for line in record.splitlines()[1:]]
    assert list(content["clients"]) == ids
    assert counted.broken_since is not None
    for row, client in enumerate(ids):
        assert content["clients"][client] == {
            "turns": counted.turns[row],
            "promised_units": counted.promised_units[row],
            "owed_units": counted.owed_units[row],
            "forfeited_units": counted.forfeited_units[row],
            "behind_units": counted.behind_units[row],
            "status": counted.statuses[row],
            "broken_since": counted.broken_since[row],
        }
    assert (content["format"], content["books_balance"], content["terms"]["tolerance"]) == (1, True, "2")
    assert counted.worst is not None
    assert (content["status"], content["worst"]) == (counted.status, ids[counted.worst])
    assert content["since"] == counted.summary().since


def test_every_change_of_a_certificate_is_detected(certified: Path) -> None:
    certificate, record = read_files(certified)
    lines, count = record.splitlines(keepends=True), 0
    expected = verify.recount(lines)
    content = json.loads(certificate)
    assert json.dumps(content, sort_keys=True) == json.dumps(expected, sort_keys=True)
    for mutation in mutations(content):
        count += 1
        with pytest.MonkeyPatch.context() as patch:  # the record is the same each time, so it is counted only once
            patch.setattr(verify, "recount", lambda _: copy.deepcopy(expected))
            assert verify.differences(json.dumps(mutation).encode(), lines), mutation
    assert count > 200
    twice = certificate.replace(b'"format": 1,', b'"format": 2, "format": 1,')
    assert "a field occurs twice" in verify_files(twice, record)[0]
    for garbage in (b"", b"[]", b"{}", b"null", b"\xff\xfe", certificate[:-20]):
        assert verify_files(garbage, record)


@pytest.mark.parametrize("part", EACH_PART)
def test_every_change_of_the_record_is_detected(certified: Path, part: int) -> None:
    certificate, record = read_files(certified)
    lines, count = record.splitlines(keepends=True), 0
    for index, line in enumerate(lines):
        for mutation in mutations(json.loads(line)):
            count += 1
            if count % PARTS != part:
                continue
            mutated = f"{json.dumps(mutation, ensure_ascii=False)}\n".encode()
            assert verify.differences(certificate, [*lines[:index], mutated, *lines[index + 1 :]])
        assert verify.differences(certificate, lines[:index] + lines[index + 1 :])
        assert verify.differences(certificate, [*lines[:index], line, *lines[index:]])
        if index:
            assert verify.differences(certificate, [*lines[: index - 1], line, lines[index - 1], *lines[index + 1 :]])
    assert count > 1000
    assert verify_files(certificate, record.replace(b"\n", b" \n", 1))
    assert verify_files(certificate, record[:-1])
    assert verify_files(certificate, b"")


def verify_forgery(certified: Path, change: Any) -> list[str]:
    """Returns the differences that are found if `change` forges the record and the hash is updated accordingly."""
    certificate, record = read_files(certified)
    events = [json.loads(line) for line in record.splitlines()]
    change(events)
    forged = b"".join(f"{json.dumps(event)}\n".encode() for event in events)
    content = {**json.loads(certificate), "record_sha256": hashlib.sha256(forged).hexdigest()}
    return verify_files(json.dumps(content).encode(), forged)


def test_a_forgery_with_a_correct_hash_is_detected_by_counting(certified: Path) -> None:
    def rounds(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (event for event in events if event["kind"] == "round" and event["clients"])

    def lost_turn(events: list[dict[str, Any]]) -> None:
        event = next(event for event in rounds(events) if "arrived" in event["outcomes"])
        event["outcomes"][event["outcomes"].index("arrived")] = "failed"

    def no_client_available(events: list[dict[str, Any]]) -> None:
        event = next(rounds(events))
        event["available_bits"] = "00" * (len(event["available_bits"]) // 2)

    def unknown_client(events: list[dict[str, Any]]) -> None:
        next(rounds(events))["clients"][0] = "unknown"

    def client_twice(events: list[dict[str, Any]]) -> None:
        event = next(event for event in rounds(events) if len(event["clients"]) > 1)
        event["clients"][0] = event["clients"][1]

    def missing_event(events: list[dict[str, Any]]) -> None:
        del events[-1]

    def higher_rate(events: list[dict[str, Any]]) -> None:
        events[0]["terms"]["rate_units"] += 1

    def unknown_availability(events: list[dict[str, Any]]) -> None:
        next(rounds(events))["available_bits"] = None

    def second_join(events: list[dict[str, Any]]) -> None:
        events[1]["clients"].append(events[1]["clients"][0])

    def nameless_client(events: list[dict[str, Any]]) -> None:
        events.append({**events[1], "event": len(events), "clients": [None]})

    forgeries = [lost_turn, no_client_available, unknown_client, client_twice, missing_event, higher_rate]
    for change in (*forgeries, unknown_availability, second_join, nameless_client):
        assert verify_forgery(certified, change), change.__name__
    assert verify_forgery(certified, lambda _: None) == []


def add_failed_client(event: dict[str, Any], client: str) -> None:
    """Selects one more client, which failed: nobody's turns change, so only the rules of a selection are broken."""
    event["clients"].append(client)
    event["outcomes"].append("failed")


def set_available(event: dict[str, Any], row: int, available: bool) -> None:
    mask = bytearray.fromhex(event["available_bits"])
    bit = 1 << (7 - row % 8)
    mask[row // 8] = mask[row // 8] | bit if available else mask[row // 8] & ~bit
    event["available_bits"] = mask.hex()


def is_available(event: dict[str, Any], row: int) -> bool:
    return bool(bytes.fromhex(event["available_bits"])[row // 8] >> (7 - row % 8) & 1)


@pytest.mark.parametrize("kind", ["retire", "forget"])
def test_a_record_that_selects_a_client_which_has_left_is_refused(certified: Path, kind: str) -> None:
    """The client counts as available and fails, so that all turns and debts are those of the certificate."""

    def change(events: list[dict[str, Any]]) -> None:
        ids = [client for event in events if event["kind"] == "join" for client in event["clients"]]
        left = next(event for event in events if event["kind"] == kind)
        event = next(event for event in events[left["event"] :] if event["kind"] == "round")
        set_available(event, ids.index(left["client"]), True)
        add_failed_client(event, left["client"])

    (difference,) = verify_forgery(certified, change)
    assert "has a client twice, or one that has not joined or has left" in difference


@pytest.mark.parametrize("kind", ["retire", "forget"])
def test_a_record_in_which_a_client_leaves_that_never_joined_is_refused(certified: Path, kind: str) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        next(event for event in events if event["kind"] == kind)["client"] = "nobody"

    (difference,) = verify_forgery(certified, change)
    assert "'nobody' leaves, but has not joined" in difference


def test_a_record_with_an_unknown_outcome_is_refused(certified: Path) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        failed = next(event for event in events if event["kind"] == "round" and "failed" in event["outcomes"])
        failed["outcomes"][failed["outcomes"].index("failed")] = "vanished"

    (difference,) = verify_forgery(certified, change)
    assert "has an unknown outcome" in difference


def test_a_record_that_selects_a_client_which_was_not_available_is_refused(certified: Path) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        ids: list[str] = []
        for event in events:
            if event["kind"] == "join":
                ids += event["clients"]
            if event["kind"] == "round":
                absent = [row for row in range(len(ids)) if not is_available(event, row)]
                if absent:
                    add_failed_client(event, ids[absent[0]])
                    return
        raise AssertionError("everybody was always available")

    (difference,) = verify_forgery(certified, change)
    assert "was selected in round" in difference
    assert "but was not available" in difference


def test_a_line_of_a_record_has_at_most_the_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LONGEST", 8)
    assert list(verify.lines_of(io.BytesIO(b"1234567\n12345678"))) == [b"1234567\n", b"12345678"]
    with pytest.raises(ValueError, match="a line of a record must have at most 8 bytes"):
        list(verify.lines_of(io.BytesIO(b"1\n12345678\n")))
    assert "a certificate must have at most 8 bytes" in verify.differences(b'{"a": 12}', [])[0]
    assert "at most 8 bytes" not in verify.differences(b'{"a": 1}', [])[0]


def test_the_verifier_runs_without_turnout_and_is_short(certified: Path, tmp_path: Path) -> None:
    source = Path(verify.__file__)
    assert len(source.read_text().splitlines()) < 300
    imports = {
        line.split()[1].split(".")[0] for line in source.read_text().splitlines() if line[:5] in ("impor", "from ")
    }
    assert imports <= {*sys.stdlib_module_names, "__future__"}
    copied = Path(shutil.copy(source, tmp_path / "verify.py"))
    command = [sys.executable, "-I", "-S", str(copied)]
    no_turnout = [*command[:3], "-c", "import turnout"]
    assert subprocess.run(no_turnout, capture_output=True, check=False).returncode != 0
    files = [str(certified / "certificate.json"), str(certified / "record.jsonl")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the certificate agrees with its record\n"
    content = json.loads((certified / "certificate.json").read_text())
    content["rounds"] += 1
    (tmp_path / "forged.json").write_text(json.dumps(content))
    done = subprocess.run(
        [*command, str(tmp_path / "forged.json"), files[1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        done.stdout == f"field rounds: {content['rounds']} in the certificate, {content['rounds'] - 1} in the record\n"
    )


def test_fleets_that_cannot_be_certified_are_refused(open_fleet: OpenFleet, folder: Path) -> None:
    out, record = folder / "c.json", folder / "c.jsonl"
    empty = open_fleet("empty")
    with pytest.raises(StoreError, match="no client has joined"):
        certify(empty.path, out, record)
    empty.choose(offered("a"))  # who joins when the round is closed
    with pytest.raises(StoreError, match="no client has joined"):
        certify(empty.path, out, record)
    unguaranteed = open_fleet("unguaranteed", policy="random")
    play_round(unguaranteed, offered("a", "b"))
    with pytest.raises(SettingError, match="the policy random guarantees nothing"):
        certify(unguaranteed.path, out, record)
    with pytest.raises(SettingError, match="must be three different files"):
        certify(empty.path, empty.path, record)
    assert not out.exists()
    assert not record.exists()


def test_a_fleet_whose_counts_differ_from_its_record_is_not_certified(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet()
    play_round(scheduler, offered("a", "b", "c"))
    take_snapshot(scheduler)
    scheduler.close()
    with tables(scheduler.path) as db:
        forge_snapshot(db, lambda state: state.update({"policy.turns": state["policy.turns"] + 1}))
    with pytest.raises(StoreError, match=r"differ from its record \(client a: .*; and 2 more\)"):
        certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert not (folder / "c.json").exists()


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


@pytest.mark.thorough
def test_an_endless_certificate_takes_little_memory() -> None:
    code, output, errors = run_limited("verify", "/dev/zero", "/dev/zero")
    assert (code, errors) == (1, "")
    assert output.splitlines()[-1] == "NOT verified."
