"""The dashboard in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import Browser, Page
from benchmarks.dashboard import DRAWN, PAGES, SETTLED, turn_to
from benchmarks.live import play_rounds
from dashboard.pictures import DARK, PHONE, PICTURES, make_runs, take_all
from dashboard.served import (
    first_chunk_only,
    needs_browser,
    offer_of,
    reserve,
    run_store,
    served,
    served_fleet,
    small_fleet,
    used,
)
from killing import TORTURE
from live.fleets import named
from live.turns.slots.played import open_slots, play_turns
from turnout.lab import RunPlan, RunStore, play_into
from turnout.live import FleetReader, Scheduler

pytestmark = needs_browser
ROOT = Path(__file__).parents[2]
HOSTILE = [
    "<img src=x onerror=\"window.hacked='img'\">",
    "</script><script>window.hacked='script'</script>",
    '" onmouseover="window.hacked=\'attribute\'" x="',
    "<a href=\"javascript:window.hacked='link'\">click</a>",
    "{{constructor.constructor('window.hacked=1')()}}",
    "%{x}<br><b>bold</b>&lt;i&gt;",
    "javascript:window.hacked='url'",
    "عميل-٧",
    "\u202egpj.exe",
    "../../etc/passwd?x=1&y=2#z",
    "a" * 300,
    "line\none",
]
#: The clients of a very large fleet; `make torture` shows a million.
CROWD = 100_000 if TORTURE == 1 else 1_000_000
#: The number of rounds in the heading of the page.
SHOWN_ROUNDS = (
    "Number(document.querySelector('#page h1 .muted').textContent.match(/([\\d,]+)(?: of [\\d,]+)? rounds/)[1]"
    ".replace(/,/g, ''))"
)
#: Elements that only an id interpreted as HTML can have created.
INJECTED = (
    "[...document.querySelectorAll('#page img, #page script, #page b, #page i, #page iframe')].filter("
    "element => element.localName !== 'b' || element.textContent === 'bold')"
    ".map(element => element.outerHTML.slice(0, 300))"
)


@contextmanager
def visiting(empty_page: Page, url: str, condition: str = SETTLED, **kind: Any) -> Iterator[Page]:
    """Opens a page; it must end without console messages, failed requests and requests to other servers."""
    with used(empty_page, **kind) as page:
        page.open(url)
        page.wait_for(f"({condition % 'overview'}) || ({condition % 'runs'})")
        yield page
        assert (page.console, page.failures) == ([], [])
        assert foreign_requests(page, url) == []


def foreign_requests(page: Page, url: str) -> list[str]:
    """Returns the requests to other servers."""
    return [
        address
        for address in page.requests
        if not address.startswith((f"{url.split('?')[0].rstrip('/')}/", "data:", "blob:"))
    ]


def settings_of(name: str, client: str) -> dict[str, str]:
    return {"id": client} if name == "client" else {}


# Content


@pytest.mark.thorough
def test_every_page_shows_a_live_fleet_without_rounds(empty_page: Page, tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        play_turns(scheduler, 20)
        with served(scheduler.path) as server, visiting(empty_page, server.url) as page:
            for name in PAGES:
                turn_to(page, name, **settings_of(name, "c3"))
                text = page.evaluate("document.getElementById('page').textContent")
                assert f"10 clients, {scheduler.round} decisions" in text
                assert not re.search(r"\brounds?\b", text, re.IGNORECASE), (name, text)
            turn_to(page, "overview")
            row = "document.querySelectorAll('[aria-label^=\"Turns that have not ended\"] tbody tr')"
            shown = page.evaluate(f"[...{row}].map(row => Number(row.cells[0].textContent.replace(/,/g, '')))")
            with FleetReader(scheduler.path) as reader:
                assert shown == [running_turn.decision for running_turn, _ in reader.running()]
            before = scheduler.round
            play_turns(scheduler, 3, seed=2)
            assert scheduler.round > before
            page.wait_for(
                f"document.querySelector('#page h1 .muted').textContent.includes('{scheduler.round} decisions')"
            )
            page.wait_for("document.getElementById('state').textContent === 'live'")


@pytest.mark.thorough
def test_every_page_follows_a_live_fleet(empty_page: Page, tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    small_fleet(path, rounds=30)
    with Scheduler.open(path) as scheduler, served(path) as server, visiting(empty_page, server.url) as page:
        for name in PAGES:
            turn_to(page, name, **settings_of(name, named(1)[0]))
            assert page.evaluate(SHOWN_ROUNDS) == scheduler.round - 1 >= 30  # the last round is open
            scheduler.close_round()
            page.wait_for(f"{SHOWN_ROUNDS} === {scheduler.round}")
            scheduler.choose(offer_of(scheduler.clients, scheduler.round + 1))
            page.wait_for(SETTLED % name)
        page.wait_for("document.getElementById('state').textContent === 'live'")


@pytest.mark.thorough
def test_a_run_in_progress_is_followed(empty_page: Page, tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    stored = run_store(path, rounds=40)
    with served(path) as server, visiting(empty_page, server.url) as page:
        turn_to(page, "overview")
        page.wait_for(f"{SHOWN_ROUNDS} === 20")
        with RunStore(path) as store:
            info = next(info for info in store.runs() if info.id == stored.unfinished)
            assert len(store.columns(stored.unfinished)) == 20
            play_into(store, RunPlan.from_dict(info.plan), every=10)
        turn_to(page, "turns")
        page.wait_for(f"{SHOWN_ROUNDS} === 40")
        page.wait_for("document.querySelector('#page h1').textContent.includes('finished')")


@pytest.mark.thorough
def test_a_page_shows_the_progress_of_a_partly_read_run(empty_page: Page, tmp_path: Path) -> None:
    stored = run_store(tmp_path / "runs.turnout", rounds=60)
    notices, heading = (
        "document.getElementById('notices').textContent",
        "document.querySelector('#page h1').textContent",
    )
    with (
        first_chunk_only() as read_the_rest,
        served(tmp_path / "runs.turnout") as server,
        visiting(empty_page, server.url, DRAWN) as page,
    ):
        turn_to(page, "overview", DRAWN, run=str(stored.fast[0]))
        page.wait_for(f"{notices}.includes('Still reading: 25 of 60')")
        page.wait_for(f"{heading}.includes('25 of 60 rounds read')")
        assert "finished" not in page.evaluate(heading)
        assert not page.evaluate(SETTLED % "overview")
        read_the_rest()
        page.wait_for(f"!{notices}.includes('Still reading')")
        page.wait_for(f"{heading}.includes('60 of 60 rounds, finished')")
        page.wait_for(SETTLED % "overview")


@pytest.mark.thorough
def test_every_page_of_a_very_large_fleet(empty_page: Page, tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    list(play_rounds(path, CROWD, 100, 6))
    with served(path) as server, visiting(empty_page, server.url) as page:
        page.wait_for(f"{SHOWN_ROUNDS} === 6", 120)
        for name in PAGES:
            turn_to(page, name, **settings_of(name, f"client-{7 * CROWD // 10:07}"))
            assert f"{CROWD:,}" in page.evaluate("document.querySelector('#page h1').textContent")
        page.evaluate(f"location.hash = '#/fairness?page={CROWD // 25}'")
        page.wait_for(f"document.getElementById('page').textContent.includes('of {CROWD // 25:,}')")
        assert page.evaluate("document.querySelectorAll('#page tbody tr').length") <= 50


@pytest.mark.thorough
def test_numbers_on_the_page_equal_those_of_the_fleet(empty_page: Page, tmp_path: Path) -> None:
    with served_fleet(tmp_path, 40, is_open=False) as server, visiting(empty_page, server.url) as page:
        with FleetReader(server.path) as scheduler:
            certificate, ids = scheduler.certificate(), scheduler.clients
        most = certificate.worst
        assert most is not None
        turn_to(page, "fairness")
        first = page.evaluate(
            "[...document.querySelectorAll('#page tbody tr')[0].children].map(element => element.textContent)"
        )
        assert first[0] == ids[most]
        assert first[1].endswith(str(certificate.statuses[most]).capitalize())
        assert float(first[2].replace("−", "-")) == pytest.approx(certificate.behind[most], abs=0.006)
        assert float(first[3]) == certificate.turns[most]
        assert float(first[4]) == pytest.approx(certificate.promised[most], abs=0.006)
        assert float(first[5]) == pytest.approx(certificate.owed[most], abs=0.006)
        assert "each may be 2 turns behind" in page.evaluate("document.querySelector('#page caption').textContent")
        page.click("#page tbody tr:first-child a")
        page.wait_for(SETTLED % "client")
        assert ids[most] in page.evaluate("document.querySelector('#page h1').textContent")
        sentence = f"{ids[most]} is {certificate.behind[most]:.2f} turns behind, beyond the tolerance of 2"
        assert sentence in _text(page, "overview")


@pytest.mark.thorough
def test_pages_of_empty_stores_show_a_message(empty_page: Page, tmp_path: Path) -> None:
    RunStore(tmp_path / "runs.turnout").close()
    with served(tmp_path / "runs.turnout") as server, used(empty_page) as page:
        page.open(server.url)
        for name in PAGES:
            turn_to(page, name)
            assert len(_text(page, name)) > 40, name
        assert page.console == []
    with Scheduler.open(tmp_path / "fleet.turnout", settings={"cohort_size": 2}) as scheduler:
        scheduler.register(["a", "b", "c"])
    with served(tmp_path / "fleet.turnout") as server, visiting(empty_page, server.url) as page:
        for name in PAGES:
            turn_to(page, name, **settings_of(name, "b"))
            assert len(_text(page, name)) > 40, name
        assert "No round is recorded yet" in _text(page, "fairness")


@pytest.mark.thorough
def test_errors_are_shown_and_the_page_recovers(empty_page: Page, tmp_path: Path) -> None:
    with served_fleet(tmp_path, 10) as server, used(empty_page) as page:
        page.open(server.url)
        page.wait_for(SETTLED % "overview")
        page.evaluate("location.hash = '#/client?id=unknown'")
        page.wait_for("document.getElementById('page').textContent.includes(\"there is no client 'unknown'\")")
        turn_to(page, "rounds")
        page.evaluate("location.hash = '#/rounds?number=9999'")
        page.wait_for("document.getElementById('page').textContent.includes('there is no round 9999')")
        server.path.rename(tmp_path / "elsewhere")
        page.wait_for("document.getElementById('notices').textContent.includes('is missing')")
        (tmp_path / "elsewhere").rename(server.path)
        page.wait_for("!document.getElementById('notices').textContent.includes('is missing')")
        turn_to(page, "system")


@pytest.mark.thorough
def test_the_page_reconnects_to_a_restarted_server(empty_page: Page, tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    small_fleet(path, rounds=10)
    with used(empty_page) as page, reserve() as reserved:
        with served(path, address=reserved.getsockname()) as server:
            page.open(server.url)
            page.wait_for(SETTLED % "overview")
        page.wait_for("document.getElementById('state').textContent.includes('not connected')")
        with served(path, address=reserved.getsockname()):
            page.wait_for("document.getElementById('state').textContent === 'connected'", 60)
            turn_to(page, "queues")


# Security


@pytest.mark.parametrize("shown", [HOSTILE[:4], pytest.param(HOSTILE, marks=pytest.mark.thorough)], ids=len)
def test_html_in_ids_is_not_interpreted(empty_page: Page, tmp_path: Path, shown: list[str]) -> None:
    with served_fleet(tmp_path, 20, ids=HOSTILE) as server, visiting(empty_page, server.url) as page:
        seen = ""
        for name in PAGES:
            for client in shown if name == "client" else [""]:
                turn_to(page, name, **({"id": client} if client else {}))
                seen += _text(page, name)
                _hover_everything(page)
                assert page.evaluate(INJECTED) == [], (name, client)
                links = page.evaluate(
                    "[...document.querySelectorAll('a')].map(element => element.getAttributeNames().map("
                    "name => name.endsWith('href') && element.getAttribute(name))).flat().filter(element => element)"
                )
                assert links
                assert all(address.startswith(("#", "/", "./")) for address in links), links
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert "<img src=x onerror=" in seen
        assert "</script><script>" in seen


def test_the_browser_enforces_the_security_policy(empty_page: Page, tmp_path: Path) -> None:
    with served_fleet(tmp_path, 5) as server, used(empty_page) as page:
        page.open(server.url)
        page.wait_for(SETTLED % "overview")
        assert page.console == []
        page.evaluate("""(() => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
        })()""")
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert any("Content Security Policy" in line for line in page.console)
        refused = page.evaluate("fetch('http://127.0.0.2:9/').then(() => 'sent', error => String(error))")
        assert "Failed" in refused
        assert page.evaluate("fetch('/api/store', {method: 'DELETE'}).then(response => response.status)") == 405


def test_the_page_opens_only_with_the_token(empty_page: Page, tmp_path: Path) -> None:
    with served_fleet(tmp_path, 5, token="open-sesame-1234") as server:
        with used(empty_page) as page:
            page.open(server.url)
            assert "needs its token" in page.evaluate("document.body.textContent")
        with visiting(empty_page, f"{server.url}/?token=open-sesame-1234") as page:
            assert "token" not in page.evaluate("location.href")
            assert page.evaluate("document.cookie") == ""  # scripts cannot read it
            for name in ("queues", "client"):
                turn_to(page, name, **settings_of(name, named(1)[0]))


# Keyboard, dialogs and phones


@pytest.mark.thorough
def test_keyboard_shortcuts_and_the_dialog_in_which_a_run_is_chosen(empty_page: Page, tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    stored = run_store(path, rounds=20)
    with served(path) as server, visiting(empty_page, server.url) as page:
        for index, name in enumerate(PAGES):
            page.press(str((index + 1) % 10))
            page.wait_for(SETTLED % name)
        page.press("?")
        page.wait_for("document.getElementById('keys').open")
        page.press("Escape")
        page.wait_for("!document.getElementById('keys').open")
        theme = page.evaluate("document.documentElement.dataset.theme")
        page.press("t")
        page.wait_for(f"document.documentElement.dataset.theme !== '{theme}'")
        page.press("6")
        page.wait_for(SETTLED % "rounds")
        page.press("ArrowLeft")
        page.wait_for("location.hash.includes('number=')")
        page.press("/")
        assert page.evaluate("document.activeElement.id") == "search-box"
        page.type("17")
        page.press("Enter")
        page.wait_for(SETTLED % "client")
        page.evaluate("document.activeElement.blur()")
        page.press("r")
        page.wait_for("document.getElementById('runs').open")
        page.press("Escape")
        turn_to(page, "fairness")
        page.click("#run-button")
        page.wait_for("document.getElementById('runs').open")
        page.click(f"#runs a[href*='run={stored.random[0]}']")
        page.wait_for(f"location.hash.includes('run={stored.random[0]}')")
        page.wait_for("document.getElementById('page').textContent.includes('No promise')")
        assert "random" in page.evaluate("document.getElementById('run-button').textContent")
        stops = set()
        for _ in range(25):
            page.press("Tab")
            stops.add(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
        assert len(stops) > 15  # the focus is not trapped


@pytest.mark.thorough
@pytest.mark.parametrize("dark", [True, False])
def test_every_page_fits_a_phone(empty_page: Page, tmp_path: Path, dark: bool) -> None:
    fleet = served_fleet(tmp_path, 30, ids=[*named(10), *HOSTILE[:1], "b" * 200, "late-1", "late-2"])
    phone: dict[str, Any] = {"width": 390, "height": 844, "phone": True}
    with fleet as server, visiting(empty_page, server.url, **phone, dark=dark) as page:
        for name in PAGES:
            turn_to(page, name, **settings_of(name, "b" * 200))
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = sum(map(int, re.findall(r"\d+", shade)[:3])) / 3
        assert (lightness < 80) is dark


# Pictures


EVERY_PICTURE = (*PICTURES, *DARK, *PHONE)


@pytest.mark.thorough  # of `make pictures`, a tool of this repository
def test_the_script_takes_its_pictures(browser: Browser, tmp_path: Path) -> None:
    taken = take_all(tmp_path, only=EVERY_PICTURE, rounds=20, seeds=1, fleet_rounds=160, running=browser)
    assert sorted(taken) == sorted(tmp_path.iterdir()) == sorted(tmp_path / f"{name}.png" for name in EVERY_PICTURE)
    for picture in taken:
        assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert picture.stat().st_size > 10_000


def test_the_documentation_shows_exactly_the_pictures_of_the_script() -> None:
    shown = set()
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        shown |= set(re.findall(r"pictures/([\w.-]+\.png)", document.read_text(encoding="utf-8")))
    kept = {path.name for path in (ROOT / "docs" / "pictures").glob("*.png")}
    assert shown == kept == {f"{name}.png" for name in EVERY_PICTURE}


def test_selections_in_the_store_of_the_pictures_are_explained_exactly(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    make_runs(path, rounds=5, seeds=1)
    with served(path) as server:
        assert server.json("/api/explain?id=3&round=5")["exact"]


def _text(page: Page, name: str) -> str:
    if not page.evaluate(SETTLED % name):
        turn_to(page, name)
    text: str = page.evaluate("document.getElementById('page').textContent")
    return text


def _hover_everything(page: Page) -> None:
    """Moves the mouse over every chart, so that its tooltips are shown."""
    boxes = page.evaluate("""[...document.querySelectorAll('#page [data-chart] .plot')].map(element => {
        const box = element.getBoundingClientRect();
        return [box.x, box.y + window.scrollY, box.width, box.height];
    })""")
    for x, y, width, height in boxes:
        page.evaluate(f"window.scrollTo(0, {y - 200})")
        top = y - page.evaluate("window.scrollY")
        for part in (0.25, 0.5, 0.75):
            page.hover(x + part * width, top + part * height)
