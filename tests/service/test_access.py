"""Tokens in memory: they give access exactly as long as those in the file do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from service.served import ROUNDS
from turnout.live import Scheduler
from turnout.service.access import callers
from turnout.service.access.callers import Access, Caller
from turnout.service.access.tokens import SECONDS_PER_DAY, Token, TokenFile, tokens_path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    Scheduler.open(path, **ROUNDS).close()
    return path


@pytest.fixture
def file(fleet: Path) -> Iterator[TokenFile]:
    with TokenFile(fleet) as opened:
        yield opened


@pytest.fixture
def access(fleet: Path, file: TokenFile) -> Iterator[Access]:
    file.create("viewer")
    with TokenFile(fleet, read_only=True) as reading:
        yield Access({"fleet": reading})


def role(caller: Caller | None) -> str | None:
    return None if caller is None else caller.role


def test_a_token_is_read_once_until_the_file_changes(access: Access, file: TokenFile) -> None:
    (first,) = file.create("server")
    with patch.object(TokenFile, "find", autospec=True, side_effect=TokenFile.find) as find:
        assert [role(access.caller(first.text)) for _ in range(3)] == ["server"] * 3
        assert find.call_count == 1
        file.create("viewer")
        assert role(access.caller(first.text)) == "server"
        assert find.call_count == 2


def test_a_revoked_token_gives_no_access_in_the_next_pass_of_the_event_loop(access: Access, file: TokenFile) -> None:
    (new,) = file.create("server")

    async def run() -> list[str | None]:
        found = [role(access.caller(new.text))]
        file.revoke(new.token.id)
        await asyncio.sleep(0)
        return [*found, role(access.caller(new.text))]

    assert asyncio.run(run()) == ["server", None]


def test_files_are_looked_at_once_in_each_pass_of_the_event_loop(access: Access, file: TokenFile) -> None:
    (new,) = file.create("server")

    async def run() -> None:
        for _ in range(3):
            await asyncio.gather(*[request() for _ in range(5)])

    async def request() -> None:
        assert role(access.caller(new.text)) == "server"

    with patch.object(TokenFile, "version", autospec=True, side_effect=TokenFile.version) as version:
        asyncio.run(run())
    assert version.call_count == 3


def test_a_token_in_memory_expires(access: Access, file: TokenFile) -> None:
    (new,) = file.create("server", days=1.0)
    assert role(access.caller(new.text)) == "server"
    now = new.token.created + SECONDS_PER_DAY
    with patch.object(Token, "is_valid", autospec=True, side_effect=lambda token: now < token.expires):
        assert access.caller(new.text) is None


def test_texts_that_are_no_tokens_are_not_kept_in_memory(access: Access, file: TokenFile) -> None:
    (new,) = file.create("server")
    assert role(access.caller(new.text)) == "server"
    for text in ("", "x", new.text[:-1], new.text + "x", new.text.upper(), "\ud800"):
        assert access.caller(text) is None
    assert len(access._known) == 1


def test_the_tokens_in_memory_are_limited(access: Access, file: TokenFile) -> None:
    made = file.create("device", clients=[f"phone-{number}" for number in range(10)])
    with patch.object(callers, "MOST_KNOWN", 4):
        for _ in range(2):
            for new in made:
                caller = access.caller(new.text)
                assert caller is not None
                assert (caller.client, caller.token) == (new.token.client, new.token.id)
                assert len(access._known) <= 4


def test_a_token_that_cannot_be_checked_allows_nothing_to_be_read(
    access: Access, file: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    (viewer,), (device,) = file.create("viewer"), file.create("device", clients=["phone-1"])
    assert access.may_read(viewer.text, "fleet")
    assert not access.may_read(viewer.text, "other")
    assert not access.may_read(device.text, "fleet")
    path = tokens_path(file.fleet)
    path.rename(path.with_name("hidden"))
    assert not access.may_read(viewer.text, "fleet")
    assert "tokens cannot be read" in caplog.text
    path.with_name("hidden").rename(path)
    assert access.may_read(viewer.text, "fleet")
