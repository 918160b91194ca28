"""The dashboards of several fleets: a list, and each under a path of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.dashboard.choice import FleetPages
from turnout.web.access import Access, Caller, SharedToken
from turnout.web.guard import PageGuard


class Tokens:
    """Access to each fleet, and to both, with a token."""

    needs_token = True

    def caller(self, text: str) -> Caller | None:
        fleets = {"token-of-phones": "phones", "token-of-cars": "cars", "token-of-all": None}
        return Caller("viewer", fleets[text]) if text in fleets else None


def access(*, locked: bool) -> Access:
    return Tokens() if locked else SharedToken(None)


def page(name: str, *, locked: bool) -> ASGIApp:
    """Returns a dashboard that answers with its name and the path that it sees."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({"fleet": name, "path": scope["path"]})(scope, receive, send)

    return PageGuard(answer, access=access(locked=locked), fleet=name)


def pages(*, locked: bool) -> FleetPages:
    fleets = {name: page(name, locked=locked) for name in ("phones", "cars")}
    return FleetPages(fleets, access(locked=locked))


def get(app: ASGIApp, path: str, *, query: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
    """Returns the status, the headers and the body of an answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    names = {"host": "localhost:8080", **headers}
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
        "server": ("localhost", 8080),
    }

    async def answer() -> None:
        await app(scope, receive, send)

    asyncio.run(answer())
    start, *parts = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], found, b"".join(part.get("body", b"") for part in parts).decode()


def test_the_list_links_the_dashboard_of_every_fleet() -> None:
    app = pages(locked=False)
    status, headers, body = get(app, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert '<a href="/fleets/phones/">phones</a>' in body
    assert '<a href="/fleets/cars/">cars</a>' in body
    assert get(app, "/fleets/cars/")[2] == '{"fleet":"cars","path":"/"}'
    assert get(app, "/fleets/phones/api/store")[2] == '{"fleet":"phones","path":"/api/store"}'
    status, headers, _ = get(app, "/fleets/cars")
    assert (status, headers["location"]) == (307, "/fleets/cars/")
    for path in ("/fleets/trains/", "/api/store"):
        status, _, body = get(app, path)
        assert (status, "there is no such page" in body) == (404, True)
    assert get(app, "/", host="elsewhere.example")[0] == 421


def test_a_token_shows_its_fleets_only() -> None:
    app = pages(locked=True)
    assert get(app, "/")[0] == 401
    assert get(app, "/", authorization="Bearer nonsense")[0] == 401
    body = get(app, "/", authorization="Bearer token-of-all")[2]
    assert ("phones" in body, "cars" in body) == (True, True)
    status, headers, body = get(app, "/", authorization="Bearer token-of-cars")
    assert (status, headers["location"], body) == (303, "/fleets/cars/", "")
    assert get(app, "/fleets/cars/", authorization="Bearer token-of-cars")[0] == 200
    assert get(app, "/fleets/phones/", authorization="Bearer token-of-cars")[0] == 401


@pytest.mark.parametrize("prefix", ["", "/fleets/cars"])
def test_a_token_becomes_a_cookie_of_the_page_that_it_opened(prefix: str) -> None:
    app = pages(locked=True)
    status, headers, _ = get(app, f"{prefix}/", query="token=token-of-cars")
    assert (status, headers["location"]) == (303, f"{prefix}/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert f"Path={prefix}/" in attributes
    assert get(app, "/fleets/cars/api/store", cookie=cookie)[0] == 200
    assert get(app, "/fleets/phones/api/store", cookie=cookie)[0] == 401
