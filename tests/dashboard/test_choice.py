"""The dashboards of several fleets: a list, and each under a path of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from requesting import Reply, running, send_request
from turnout.dashboard.choice import FleetPages
from turnout.web.access import Access, Caller, SharedToken
from turnout.web.guard import PageGuard
from turnout.web.serving import LIMITS, Server


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


@contextmanager
def serving(*, locked: bool) -> Iterator[Callable[..., Reply]]:
    """Serves the dashboards of two fleets; yields what requests a path."""
    fleets = {name: page(name, locked=locked) for name in ("phones", "cars")}
    server = Server(FleetPages(fleets, access(locked=locked)), LIMITS, [], shutdown_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listener, running(server, listener):
        port = listener.getsockname()[1]
        yield lambda path, **headers: send_request(port, "GET", path, headers=headers)


def test_the_list_links_the_dashboard_of_every_fleet() -> None:
    with serving(locked=False) as get:
        listed = get("/")
        assert (listed.status, listed.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for name in ("phones", "cars"):
            assert (
                f'<tr data-fleet="{name}"><th class="text" scope="row"><a href="/fleets/{name}/">{name}</a>'.encode()
                in listed.body
            )
        assert b'src="/fleets/phones/static/fleets.js"' in listed.body
        assert get("/fleets/cars/").data == {"fleet": "cars", "path": "/"}
        assert get("/fleets/phones/api/store").data == {"fleet": "phones", "path": "/api/store"}
        moved = get("/fleets/cars")
        assert (moved.status, moved.headers["location"]) == (307, "/fleets/cars/")
        for path in ("/fleets/trains/", "/api/store"):
            reply = get(path)
            assert (reply.status, "there is no such page" in reply.error) == (404, True)
        assert get("/", host="elsewhere.example").status == 421


def test_a_token_shows_its_fleets_only() -> None:
    with serving(locked=True) as get:
        assert get("/").status == 401
        assert get("/", authorization="Bearer nonsense").status == 401
        body = get("/", authorization="Bearer token-of-all").body
        assert (b"phones" in body, b"cars" in body) == (True, True)
        own = get("/", authorization="Bearer token-of-cars")
        assert (own.status, own.headers["location"], own.body) == (303, "/fleets/cars/", b"")
        assert get("/fleets/cars/", authorization="Bearer token-of-cars").status == 200
        assert get("/fleets/phones/", authorization="Bearer token-of-cars").status == 401


@pytest.mark.parametrize("prefix", ["", "/fleets/cars"])
def test_a_token_becomes_a_cookie_of_the_page_that_it_opened(prefix: str) -> None:
    with serving(locked=True) as get:
        reply = get(f"{prefix}/?token=token-of-cars")
        assert (reply.status, reply.headers["location"]) == (303, f"{prefix}/")
        cookie, *attributes = reply.headers["set-cookie"].split("; ")
        assert f"Path={prefix}/" in attributes
        assert get("/fleets/cars/api/store", cookie=cookie).status == 200
        assert get("/fleets/phones/api/store", cookie=cookie).status == 401
