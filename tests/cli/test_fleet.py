from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cli.in_process import Done
from cli.in_process import run as run_turnout
from turnout.kernel.fairness import Certificate
from turnout.scheduler import ClientStatus, Feature, Features, Scheduler
from turnout.store import RunStore

COMMANDS = [("status",), ("certificate",), ("history", "phone-00"), ("export",), ("doctor",)]
SETTINGS = {"cohort_size": 3, "guaranteed_rate": 0.1, "speed_weight": 1.0}


def run(command: str, file: Path, *arguments: str) -> Done:
    """A command of this family."""
    return run_turnout("fleet", command, file, *arguments)


def shown(command: str, file: Path, *arguments: str) -> str:
    done = run(command, file, *arguments)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def told(command: str, file: Path, *arguments: str) -> Any:
    return json.loads(shown(command, file, *arguments, "--json"))


def refused(command: str, file: Path, *arguments: str) -> str:
    """The one line of an error; nothing on standard output, exit code 2."""
    done = run(command, file, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def status_of(number: int) -> ClientStatus:
    return ClientStatus(free_cpu=0.5 + 0.1 * number, bandwidth=3.0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty rounds in which phone-03 always fails and phone-05 is always late, and one more that is open."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    rng = random.Random(0)
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        for _ in range(30):
            for client in scheduler.choose({f"phone-{n:02}": status_of(n) for n in range(8)}):
                if client == "phone-03":
                    scheduler.failed(client, "battery empty")
                elif client != "phone-05":
                    scheduler.report(client, rng.uniform(5, 29))
            scheduler.close_round()
            late = [turn for turn in scheduler.history("phone-05") if turn.kind == "late" and not turn.late_seconds]
            if late:
                scheduler.report("phone-05", 42.5, round=late[-1].round)
        chosen = scheduler.choose({f"phone-{n:02}": status_of(n) for n in range(8)})
        scheduler.report(chosen[0], 7.0)
        scheduler.failed(chosen[1], "no network")
    return path


@pytest.fixture
def file(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Clients whose names and words are meant to harm a terminal."""
    path = tmp_path / "odd.turnout"
    with Scheduler.open(path, settings={"cohort_size": 3, "guaranteed_rate": 0.1}, rest_after=1) as scheduler:
        names = ["\x1b[31mred", "[bold]fat[/bold]", "two\nlines"]
        for client in scheduler.choose({name: status_of(1) for name in names}):
            scheduler.failed(client, "\x1b]0;title\x07 [/nothing]")
        scheduler.close_round(after=1.0)
        scheduler.choose({name: status_of(1) for name in names})
    return path


# status


def test_the_status_shows_the_open_round_and_who_is_out(file: Path) -> None:
    with Scheduler.open(file, read_only=True) as scheduler:
        (out,) = scheduler.status().out
    words = shown("status", file)
    for word in (
        "8, 0 of them retired",
        "31 is open for",
        "its deadline is after 30.0 s",
        "1 of 3 wanted",
        f"│ {out}",
        "no network",
        "phone-03 up to and with round",
        "kept, but for what is owed",
    ):
        assert word in words


def test_the_status_as_json_is_that_of_the_scheduler(file: Path) -> None:
    found = told("status", file)
    with Scheduler.open(file, read_only=True) as scheduler:
        assert {**asdict(scheduler.status()), "elapsed": found["elapsed"]} == found
    assert found["elapsed"] > 0


def test_a_closed_round_a_new_fleet_and_a_missing_deadline_are_told(file: Path, tmp_path: Path) -> None:
    with Scheduler.open(file) as scheduler:
        scheduler.close_round()
    assert "31 is closed, none is open" in shown("status", file)
    Scheduler.open(tmp_path / "new.turnout").close()
    words = shown("status", tmp_path / "new.turnout")
    assert "none was opened yet" in words
    assert "no deadline is set" in words


def test_a_round_that_is_over_its_deadline_says_so(tmp_path: Path) -> None:
    with Scheduler.open(tmp_path / "f", settings={"cohort_size": 1, "guaranteed_rate": 0}, deadline=1e-6) as scheduler:
        scheduler.choose({"a": status_of(1)})
    assert "it is over since" in shown("status", tmp_path / "f")


# certificate


def test_the_certificate_shows_the_worst_first_and_holds(file: Path) -> None:
    words = shown("certificate", file)
    assert words.endswith("The certificate holds for all 8: turns taken ≥ promised − owed − forfeited.\n")
    rows = told("certificate", file)
    assert rows["holds"] is True
    assert rows["of"] == len(rows["clients"]) == 8
    owed = [row["owed"] for row in rows["clients"]]
    assert owed == sorted(owed, reverse=True)
    with Scheduler.open(file, read_only=True) as scheduler:
        certificate, place = scheduler.certificate(), scheduler.clients.index("phone-05")
    (late,) = [row for row in rows["clients"] if row["client"] == "phone-05"]
    assert late == {
        "client": "phone-05",
        "turns": int(certificate.turns[place]),
        "promised": float(certificate.promised[place]),
        "owed": float(certificate.owed[place]),
        "forfeited": float(certificate.forfeited[place]),
        "kept": True,
    }


def test_of_many_clients_the_worst_twenty_are_shown_and_all_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 3, "guaranteed_rate": 0.05}, deadline=9.0) as scheduler:
        scheduler.register([f"phone-{n:02}" for n in range(30)])
    assert len(told("certificate", path)["clients"]) == 20
    assert len(told("certificate", path, "--all")["clients"]) == 30
    assert "The worst 20 of 30 clients" in shown("certificate", path)
    assert "phone-29" in shown("certificate", path, "--all")


def test_what_the_cap_took_is_told(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    settings = {"cohort_size": 1, "guaranteed_rate": 0.5, "max_owed": 1, "speed_weight": 100.0}
    with Scheduler.open(path, settings=settings, deadline=9.0) as scheduler:
        for _ in range(20):
            (chosen,) = scheduler.choose({"slow": status_of(1), "fast": status_of(1)})
            scheduler.report(chosen, 1.0 if chosen == "fast" else 8.0)
            scheduler.close_round()
    assert "raise max_owed or lower speed_weight" in shown("certificate", path)


def test_a_broken_certificate_is_exit_code_one(file: Path) -> None:
    eight = np.zeros(8, dtype=np.int64)
    broken = Certificate(
        turns=eight, units_per_turn=10, promised_units=eight + np.arange(8), owed_units=eight, forfeited_units=eight
    )
    with patch.object(Scheduler, "certificate", return_value=broken):
        done = run("certificate", file)
        as_json = run("certificate", file, "--json")
    assert done.returncode == as_json.returncode == 1
    assert "broken for 7 of 8 clients" in done.stdout
    assert json.loads(as_json.stdout)["holds"] is False


def test_a_policy_that_promises_nothing_has_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 1}, deadline=9.0) as scheduler:
        (chosen,) = scheduler.choose({"a": status_of(1)})
        scheduler.report(chosen, 2.0)
        scheduler.close_round()
    assert "promises nothing" in refused("certificate", path)
    assert told("history", path, "a")["owed"] is None
    assert "1 turns, reliability 0.67\n" in shown("history", path, "a")


# history


def test_a_history_shows_outcomes_reasons_and_late_times(file: Path) -> None:
    assert "battery empty" in shown("history", file, "phone-03")
    words = shown("history", file, "phone-05")
    for word in ("late", "30.00", "42.50", "reliability", "owed"):
        assert word in words


def test_a_history_as_json_has_every_turn(file: Path) -> None:
    found = told("history", file, "phone-05")
    with Scheduler.open(file, read_only=True) as scheduler:
        turns = scheduler.history("phone-05")
        assert found["reliability"] == scheduler.reliability("phone-05")
    assert [turn["round"] for turn in found["turns"]] == [turn.round for turn in turns]
    first = found["turns"][0]
    assert (first["outcome"], first["seconds"], first["late_seconds"]) == ("late", 30.0, 42.5)


def test_a_history_shows_losses_where_any_was_told(file: Path, tmp_path: Path) -> None:
    assert "loss" not in shown("history", file, "phone-05")
    assert {turn["loss"] for turn in told("history", file, "phone-05")["turns"]} == {None}
    path = tmp_path / "told.turnout"
    with Scheduler.open(path, settings={"cohort_size": 1}, deadline=30.0) as scheduler:
        for loss in (0.62519, None, -1e-9):
            scheduler.choose({"a": status_of(1)})
            scheduler.report("a", 5.0, loss=loss)
            scheduler.close_round()
        scheduler.choose({"a": status_of(1)})
        scheduler.close_round()
        scheduler.report("a", 31.0, loss=0.5, round=4)
        scheduler.choose({"a": status_of(1)})
    lines = [[cell.strip() for cell in line[1:-1].split("│")] for line in shown("history", path, "a").splitlines()]
    assert [line[3] for line in lines if line[0].isdecimal()] == ["0.6252", "", "-1e-09", "0.5", ""]
    assert "loss" in shown("history", path, "a")
    assert [turn["loss"] for turn in told("history", path, "a")["turns"]] == [0.62519, None, -1e-9, 0.5, None]


def test_an_unknown_client_is_refused(file: Path) -> None:
    assert "there is no client 'phone-99'" in refused("history", file, "phone-99")


# export


def test_an_export_is_every_event_as_a_line_of_json(file: Path) -> None:
    lines = shown("export", file).splitlines()
    with Scheduler.open(file, read_only=True) as scheduler:
        assert [json.loads(line) for line in lines] == list(scheduler.export())


def test_an_export_into_a_file_is_the_same_and_whole(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.jsonl"
    out.write_text("older")
    assert shown("export", file, "--out", str(out)) == ""
    assert out.read_text() == shown("export", file)
    assert not list(tmp_path.glob(".audit*"))


def test_an_export_that_breaks_off_leaves_what_was_there(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.jsonl"
    out.write_text("older")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE events SET data = x'00' WHERE seq = 20")
    done = run("export", file, "--out", str(out))
    assert done.returncode == 2
    assert out.read_text() == "older"
    assert not list(tmp_path.glob(".audit*"))


def test_an_export_does_not_overwrite_the_fleet(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    assert "is the fleet itself" in refused("export", file, "--out", str(file))
    assert file.read_bytes() == before
    assert "cannot write" in refused("export", file, "--out", str(tmp_path / "nowhere" / "audit.jsonl"))


# doctor


def test_a_sound_file_is_told_to_be_sound(file: Path) -> None:
    words = shown("doctor", file)
    assert words.endswith("The file is sound.\n")
    assert "NOT SOUND" not in words
    found = told("doctor", file)
    assert found["sound"] is True
    assert {"part", "sound", "words", "remedy"} == found["findings"][0].keys()


def test_a_damaged_file_is_exit_code_one_with_what_to_do(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE turns SET why = '[bold]x' WHERE why IS NOT NULL")
    done = run("doctor", file)
    assert (done.returncode, done.stderr) == (1, "")
    assert "NOT SOUND" in done.stdout
    assert "To do: restore the file from a backup.\nThe file is not sound.\n" in done.stdout
    found = json.loads(run("doctor", file, "--json").stdout)
    assert next(one["part"] for one in found["findings"] if one["sound"] is False) == "turns"


# All of them


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fleet_in_use_can_be_looked_at(file: Path, command: tuple[str, ...]) -> None:
    with Scheduler.open(file) as scheduler:
        shown(command[0], file, *command[1:])
        scheduler.close_round()
        shown(command[0], file, *command[1:])


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_a_fleet_is_one_line_and_exit_code_two(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert "there is no fleet at" in refused(command[0], tmp_path / "nowhere", *command[1:])
    RunStore(tmp_path / "runs.turnout").close()
    assert "not a turnout fleet" in refused(command[0], tmp_path / "runs.turnout", *command[1:])
    (tmp_path / "words.txt").write_text("not a fleet\n" * 100)
    assert "not a SQLite file" in refused(command[0], tmp_path / "words.txt", *command[1:])


@pytest.mark.parametrize("command", COMMANDS[:4])
def test_a_damaged_fleet_is_one_line_and_exit_code_two(file: Path, command: tuple[str, ...]) -> None:
    file.write_bytes(file.read_bytes()[:20_000])
    assert "damaged" in refused(command[0], file, *command[1:])


def test_words_of_clients_do_nothing_to_the_terminal(odd: Path) -> None:
    every = [shown("status", odd), shown("certificate", odd), shown("history", odd, "two\nlines")]
    assert not any("\x1b" in words or "\x07" in words for words in every)
    assert r"\x1b[31mred up to and with round 2" in every[0]
    assert r"two\nlines" in every[1]
    assert "[bold]fat[/bold]" in every[1]
    assert r"\x1b]0;title\x07 [/nothing]" in every[2]


def test_features_that_are_computed_need_not_be_known_to_look(tmp_path: Path) -> None:
    path = tmp_path / "own.turnout"
    features = Features.of(
        Feature("load", 0.1, 10), compute=lambda known: (known["load"], 1 / known["load"]), outputs=2
    )
    with Scheduler.open(path, features=features, settings=SETTINGS, deadline=9.0) as scheduler:
        scheduler.choose({f"phone-{n:02}": {"load": 1.0 + n} for n in range(6)})
        scheduler.report_many(dict.fromkeys(scheduler.status().out, 2.0))
        scheduler.close_round()
    for command, *rest in COMMANDS:
        shown(command, path, *rest)


def test_a_reader_that_stops_early_is_no_accident(file: Path) -> None:
    command = f"{sys.executable} -m turnout fleet export {file} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["event"] == 1
    assert "Traceback" not in done.stderr


def test_every_command_has_help() -> None:
    for command, *_ in COMMANDS:
        words = run(command, Path("--help"))
        assert words.returncode == 0
        assert "FILE" in words.stdout
        assert ("--json" in words.stdout) == (command != "export")
