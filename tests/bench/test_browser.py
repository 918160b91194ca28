from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.browser import PROGRAMS, Browser, BrowserError, Page
from turnout.errors import SettingError

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, PROGRAMS)), reason="no Chromium is installed (apt install chromium)"
)

ICON = '<link rel="icon" href="data:,">'  # without one the browser asks for /favicon.ico, some time after the load
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PAGES = {
    "/": "<title>hello</title><p>Hello.</p>",
    "/noisy": """<script>
        console.log("only a remark");
        console.warn("careful");
        console.error("broken", 7, true, null, undefined);
        console.assert(false, "unlikely");
    </script><script>throw new TypeError("uncaught indeed")</script>""",
    "/strict": "<script>document.title = 'ran'</script>",
    "/loads": f"""<img src="/missing.png"><img src="data:image/png;base64,{DOT}">
        <script>fetch(URL.createObjectURL(new Blob(["x"])))</script>""",
    "/keys": """<meta name="viewport" content="width=device-width">
        <body style="height: 4000px; margin: 0">
        <form onsubmit="sent = field.value; return false"><input id="field"></form>
        <button id="far" style="position: absolute; top: 3000px" onclick="clicks.push(event.isTrusted)">far</button>
        <i id="hidden" style="display: none">hidden</i>
        <script>
            keys = []; clicks = []; sent = null;
            addEventListener("keydown", event => keys.push([event.key, event.code, event.keyCode, event.shiftKey]));
        </script>""",
    "/colours": """<style>
        body, p { background: white; margin: 0 }
        body { height: 2000px }
        @media (prefers-color-scheme: dark) { body, p { background: black } }
        </style><meta name="viewport" content="width=device-width"><p>Text.</p>""",
    "/moved": "<script>location.replace('/')</script>",
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        content = f"<!doctype html>{ICON}{page}".encode()
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if self.path == "/strict":
            self.send_header("Content-Security-Policy", "script-src 'none'")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with closing(browser.page()) as opened:
        yield opened


def soon(ready: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not ready() and time.monotonic() < until:
        time.sleep(0.02)
    return ready()


def size(picture: Path) -> tuple[int, int]:
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[12:16] == b"IHDR"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def living(mark: str) -> list[str]:
    """The commands of all processes that name `mark`; a dead one that nobody has fetched yet has no command."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_text(errors="replace")
        except OSError:
            continue
        if mark in command:
            found.append(command)
    return found


# Opening and asking


def test_a_browser_tells_its_version(browser: Browser) -> None:
    assert "Chrom" in browser.version


def test_an_open_page_has_loaded_and_answers(page: Page, site: str) -> None:
    page.open(f"{site}/")
    assert page.evaluate("document.readyState") == "complete"
    assert page.evaluate("({title: document.title, sum: [1, 2]})") == {"title": "hello", "sum": [1, 2]}
    assert page.evaluate("Promise.resolve(41).then(value => value + 1)") == 42
    assert page.evaluate("undefined") is None


def test_a_page_that_sends_the_reader_elsewhere_is_open_when_the_last_one_has_loaded(page: Page, site: str) -> None:
    page.open(f"{site}/moved")
    assert page.wait_for("document.title === 'hello'")


def test_a_change_of_fragment_does_not_wait_for_a_load(page: Page, site: str) -> None:
    page.open(f"{site}/")
    page.open(f"{site}/#below")
    assert page.evaluate("location.hash") == "#below"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("nowhere.to", "ReferenceError: nowhere is not defined"),
        ("Promise.reject(new Error('came to nothing'))", "came to nothing"),
        ("(() => { throw 'a string' })()", "a string"),
        ("1 +", "SyntaxError"),
    ],
)
def test_what_a_script_throws_is_told(page: Page, script: str, text: str) -> None:
    with pytest.raises(BrowserError) as told:
        page.evaluate(script)
    assert text in str(told.value)
    assert script in str(told.value)


def test_a_refused_connection_is_an_error(page: Page) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(BrowserError, match="cannot be opened: net::ERR_CONNECTION_REFUSED"):
            page.open(f"http://127.0.0.1:{unused.getsockname()[1]}/")


def test_waiting_ends_when_the_script_is_true(page: Page, site: str) -> None:
    page.open(f"{site}/")
    page.evaluate("void setTimeout(() => { later = {done: 'yes'} }, 200)")
    assert page.wait_for("later.done") == "yes"


def test_waiting_in_vain_tells_the_script_its_error_and_the_console(page: Page, site: str) -> None:
    page.open(f"{site}/noisy")
    with pytest.raises(BrowserError) as told:
        page.wait_for("never.mind", seconds=0.2)
    assert str(told.value).startswith("not true within 0.2 s: never.mind\n")
    assert "never is not defined" in str(told.value)
    assert "error: broken 7" in str(told.value)


# What a page says and loads


def test_the_console_has_warnings_errors_and_uncaught_exceptions(page: Page, site: str) -> None:
    page.open(f"{site}/noisy")
    assert soon(lambda: len(page.console) >= 4)
    assert page.console[:3] == ["warning: careful", "error: broken 7 true null undefined", "error: unlikely"]
    assert page.console[3].startswith("error: TypeError: uncaught indeed")
    assert len(page.console) == 4


def test_the_console_has_what_the_security_policy_refused(page: Page, site: str) -> None:
    page.open(f"{site}/strict")
    assert soon(lambda: bool(page.console))
    assert page.console[0].startswith("error: ")
    assert "Content Security Policy" in page.console[0]
    assert page.evaluate("document.title") == ""


def test_all_requests_are_listed_and_those_that_failed_again(page: Page, site: str) -> None:
    page.open(f"{site}/loads")
    assert soon(lambda: len(page.requests) == 4 and bool(page.failures))
    assert page.requests[0] == f"{site}/loads"
    assert f"{site}/missing.png" in page.requests
    assert f"data:image/png;base64,{DOT}" in page.requests
    assert any(address.startswith(f"blob:{site}/") for address in page.requests)
    assert page.failures == [f"404 {site}/missing.png"]


def test_a_quiet_page_says_and_misses_nothing(page: Page, site: str) -> None:
    page.open(f"{site}/")
    assert page.first_paint()
    assert (page.console, page.failures, page.requests) == ([], [], [f"{site}/"])


def test_the_first_paint_comes_within_the_time_that_passed(page: Page, site: str) -> None:
    start = time.perf_counter()
    page.open(f"{site}/")
    times = page.first_paint()
    passed = 1000 * (time.perf_counter() - start)
    assert set(times) == {"first-paint", "first-contentful-paint", "load"}
    assert all(0 < moment < passed for moment in times.values())


# Keys and clicks


def test_keys_are_pressed_as_on_a_keyboard(page: Page, site: str) -> None:
    page.open(f"{site}/keys")
    for key in ("ArrowRight", "Escape", "?", "/", "1", "t", "T"):
        page.press(key)
    assert page.evaluate("keys") == [
        ["ArrowRight", "ArrowRight", 39, False],
        ["Escape", "Escape", 27, False],
        ["?", "Slash", 191, True],
        ["/", "Slash", 191, False],
        ["1", "Digit1", 49, False],
        ["t", "KeyT", 84, False],
        ["T", "KeyT", 84, True],
    ]


def test_tab_moves_the_focus_keys_and_text_write_and_enter_sends(page: Page, site: str) -> None:
    page.open(f"{site}/keys")
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "field"
    page.type("grüße ")
    for key in ("a", "?", "b", "Backspace"):
        page.press(key)
    page.press("Enter")
    assert page.evaluate("sent") == "grüße a?"


def test_a_key_without_a_name_is_refused(page: Page) -> None:
    with pytest.raises(SettingError, match=r"no key is called 'Right'.*ArrowRight"):
        page.press("Right")


@pytest.mark.parametrize("phone", [False, True])
def test_a_click_reaches_what_was_out_of_view(page: Page, site: str, phone: bool) -> None:
    page.resize(390, 700, phone=phone)
    page.open(f"{site}/keys")
    page.click("#far")
    assert page.evaluate("clicks") == [True]
    assert page.evaluate("scrollY") > 2000


@pytest.mark.parametrize(("selector", "why"), [("#nobody", "matches nothing"), ("#hidden", "has no size")])
def test_nothing_to_click_on_is_an_error(page: Page, site: str, selector: str, why: str) -> None:
    page.open(f"{site}/keys")
    with pytest.raises(BrowserError, match=f"{selector} {why}"):
        page.click(selector)


# Pictures and sizes


def test_a_picture_has_the_size_of_the_view_or_of_the_whole_page(browser: Browser, site: str, tmp_path: Path) -> None:
    with closing(browser.page(width=400, height=300, scale=2.0)) as page:
        page.open(f"{site}/colours")
        page.screenshot(tmp_path / "view.png")
        page.screenshot(tmp_path / "whole.png", whole=True)
        page.evaluate("scrollTo(0, 900)")
        page.screenshot(tmp_path / "scrolled.png", whole=True)
        page.resize(320, 200)
        page.screenshot(tmp_path / "small.png")
    assert size(tmp_path / "view.png") == (800, 600)
    assert size(tmp_path / "whole.png") == (800, 4000)
    assert (tmp_path / "scrolled.png").read_bytes() == (tmp_path / "whole.png").read_bytes()
    assert size(tmp_path / "small.png") == (320, 200)


def test_dark_and_light_pages_look_different(browser: Browser, site: str, tmp_path: Path) -> None:
    with closing(browser.page(width=200, height=100, dark=True)) as page:
        page.open(f"{site}/colours")
        page.screenshot(tmp_path / "dark.png")
        assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches")
        page.emulate_dark(False)
        page.screenshot(tmp_path / "light.png")
        assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches")
        page.emulate_dark(True)
        page.screenshot(tmp_path / "dark again.png")
    dark, light, again = (tmp_path / f"{name}.png" for name in ("dark", "light", "dark again"))
    assert dark.read_bytes() != light.read_bytes()
    assert dark.read_bytes() == again.read_bytes()


def test_a_phone_is_narrow_and_touched(browser: Browser, site: str) -> None:
    narrow = "matchMedia('(max-width: 400px)').matches"
    touched = "matchMedia('(pointer: coarse)').matches && navigator.maxTouchPoints > 0"
    with closing(browser.page(width=390, height=844, scale=3.0, phone=True)) as page:
        page.open(f"{site}/colours")
        assert page.evaluate(f"[{narrow}, {touched}, devicePixelRatio]") == [True, True, 3]
        page.resize(1280, 800)
        assert page.evaluate(f"[{narrow}, {touched}, devicePixelRatio]") == [False, False, 1]


def test_pages_share_neither_storage_nor_cookies(browser: Browser, page: Page, site: str) -> None:
    page.open(f"{site}/")
    page.evaluate("localStorage.setItem('mine', 'yes'); document.cookie = 'mine=yes'")
    with closing(browser.page()) as other:
        other.open(f"{site}/")
        assert other.evaluate("[localStorage.getItem('mine'), document.cookie]") == [None, ""]
    assert page.evaluate("[localStorage.getItem('mine'), document.cookie]") == ["yes", "mine=yes"]


# The end


def profile(browser: Browser) -> Path:
    return Path(browser._profile.name)


def test_a_closed_browser_leaves_no_process_and_no_folder() -> None:
    browser = Browser()
    folder = profile(browser)
    page = browser.page()
    assert folder.is_dir()
    assert living(folder.name)
    browser.close()
    browser.close()
    assert not folder.exists()
    assert soon(lambda: not living(folder.name))
    with pytest.raises(BrowserError, match=r"the browser ended and gave no answer to Runtime\.evaluate"):
        page.evaluate("1")


def test_a_browser_that_dies_says_so_at_once_and_is_cleared_away() -> None:
    with Browser() as browser:
        folder = profile(browser)
        page = browser.page()
        os.kill(browser._process.pid, signal.SIGKILL)
        with pytest.raises(BrowserError, match="the browser ended"):
            page.wait_for("false")
    assert not folder.exists()
    assert soon(lambda: not living(folder.name))


def test_a_browser_that_does_not_start_shows_what_it_printed(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho a library is missing >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(BrowserError, match=r"(?s)no answer to Browser\.getVersion.*a library is missing"):
        Browser(str(broken))


def test_a_command_without_an_answer_is_named(browser: Browser, page: Page) -> None:
    with pytest.raises(BrowserError, match=r"no answer to Runtime\.evaluate within 0\.2 s"):
        page.call("Runtime.evaluate", expression="new Promise(() => 0)", awaitPromise=True, seconds=0.2)
    assert not browser.ended


def test_a_missing_program_is_refused_in_words() -> None:
    with pytest.raises(SettingError, match="no seamonkey-9 is installed; get one with: apt install chromium"):
        Browser("seamonkey-9")


def test_no_program_at_all_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError, match="no Chromium is installed; get one with: apt install chromium"):
        Browser()
