"""Runs the page docs/service.md: every command with bash and curl against a service, and compares its answers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from documents import ROOT, Block, read_blocks
from service.served import make_fleet, served
from turnout.service.errors import ALL_CODES
from turnout.web.access import ROLES
from waiting import MAX_WAIT

PAGE = "docs/service.md"
OWN = "tests/service/test_page.py"
FLEETS: dict[str, dict[str, Any]] = {"fleet": {}, "rounds": {}}
#: What differs from run to run: times and tags.
VARIABLE = (re.compile(r"\d{4}-\d\d-\d\dT"), re.compile(r'"[0-9a-f]{16}"$'))


def own_blocks() -> list[Block]:
    return [block for block in read_blocks(PAGE) if block.other_test == OWN]


def read_values(text: str) -> list[Any]:
    """Returns all JSON values of a text, one after the other."""
    values, decoder = [], json.JSONDecoder()
    text = text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].strip()
    return values


def fits(value: Any, shown: Any) -> bool:
    """Returns whether an answer is the one that is shown: fractions, times, tags and what is left out may differ."""
    if shown == "…":
        return True
    if isinstance(shown, dict) and isinstance(value, dict):
        return list(shown) == list(value) and all(fits(value[name], shown[name]) for name in shown)
    if isinstance(shown, list) and isinstance(value, list):
        return len(shown) == len(value) and all(map(fits, value, shown))
    if isinstance(shown, float) and isinstance(value, float):
        return True
    for pattern in VARIABLE:
        if isinstance(shown, str) and pattern.match(shown):
            return isinstance(value, str) and bool(pattern.match(value))
    return type(value) is type(shown) and bool(value == shown)


def create_fleets(folder: Path) -> dict[str, dict[str, str]]:
    """Creates the fleets with the commands of the page; returns their tokens."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for command in re.findall(r"^\$ turnout (fleet create .*)$", text, re.MULTILINE):
        subprocess.run([sys.executable, "-m", "turnout", *shlex.split(command)], cwd=folder, check=True)
    return {name: make_fleet(folder / f"{name}.turnout", {}) for name in FLEETS}


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_of_the_page_has_the_answer_that_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    tokens = create_fleets(tmp_path)
    with served(tmp_path, FLEETS) as service:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for name, prefix in (("fleet", ""), ("rounds", "ROUNDS_")):
            env[name.upper()] = f"http://127.0.0.1:{service.port}/v1/fleets/{name}"
            env |= {f"{prefix}{role.upper()}": tokens[name][role] for role in ROLES}
        output, is_compared = "", True
        for block in own_blocks():
            if block.language == "json":
                result, shown = read_values(output), read_values(block.text)
                assert fits(result, shown), f"line {block.line}: the answer is {json.dumps(result, ensure_ascii=False)}"
                output, is_compared = "", True
                continue
            assert is_compared or not output, f"line {block.line}: the answer before it is not shown"
            program = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[block.language]
            done = subprocess.run(
                [*program, block.text],
                env=env,
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                timeout=MAX_WAIT,
            )
            assert done.returncode == 0, f"line {block.line}: {done.stderr}"
            output, is_compared = done.stdout, block.language == "python"
        turns = json.loads((folder / "turns.json").read_text())["turns"]
        assert [(turn["id"], turn["client"]) for turn in turns] == [(3, "phone-2"), (4, "phone-3")]


def test_the_page_calls_every_operation_and_has_it_in_its_table(tmp_path: Path) -> None:
    with served(tmp_path, FLEETS) as service:
        paths = service.send("GET", "/openapi.json", role=None).data["paths"]
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    called = "".join(block.text for block in own_blocks() if block.language == "sh")
    rows = dict(table_rows(text))
    for path, methods in paths.items():
        if not path.startswith("/v1"):
            continue
        end = path.removeprefix("/v1/fleets").removeprefix("/{fleet}")
        for method, operation in methods.items():
            if path == "/v1/fleets":
                assert "curl -s ${ROUNDS%/*} " in called
                continue
            pattern = end.replace("{round}", "[0-9]+")
            assert re.search(rf"\$(FLEET|ROUNDS){pattern}[ ?\"]", called), f"{method} {path} is not called"
            roles = rows[f"{method.upper()} {end.replace('{round}', 'N')}".strip()]
            assert roles == set(operation["x-roles"]), (method, path)


def test_the_page_lists_every_code() -> None:
    table = (ROOT / PAGE).read_text(encoding="utf-8").partition("| status | codes |")[2].partition("\n\n")[0]
    codes = [line.split("|")[2] for line in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)`", " ".join(codes))) == set(ALL_CODES)


def table_rows(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yields the calls of the table, and the roles that may make them."""
    lines = text.partition("| call, after")[2].partition("\n\n")[0].splitlines()
    for line in lines[2:]:
        calls, _, *marks = (cell.strip() for cell in line.strip("|").split("|"))
        roles = {role for role, mark in zip(("device", "server", "operator", "viewer"), marks, strict=True) if mark}
        method = ""
        for call in re.findall(r"`([^`]+)`", calls):
            method, _, path = call.rpartition(" ") if " " in call else (method or call, "", call)
            yield f"{method} {path}".strip() if path != method else method, roles


def test_answers_that_differ_are_noticed() -> None:
    assert fits({"a": 1.5, "at": "2026-01-01T00:00"}, {"a": 2.5, "at": "2027-01-01T00:00"})
    assert fits({"a": {"b": 1}, "c": [2]}, {"a": "…", "c": ["…"]})
    assert not fits({"a": 1}, {"b": "…"})
    assert not fits({"a": 1}, {"a": 2})
    assert not fits({"a": None}, {"a": 2.5})
    assert not fits({"a": "x"}, {"a": "y"})
    assert not fits([1], [1, 1])
    assert not fits({"a": 1, "b": 1}, {"a": 1})
