from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.browser import PROGRAMS, Browser, BrowserError, Page
from turnout.errors import SettingError
from waiting import wait_until

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, PROGRAMS)), reason="Chromium is not installed: apt install chromium"
)

ICON = '<link rel="icon" href="data:,">'  # without it the browser requests /favicon.ico at some time after the load
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


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[Page]:
    with closing(browser.page()) as page:
        yield page


@pytest.fixture
def page(opened: Page) -> Page:
    opened.reset()
    return opened


def size_of(picture: Path) -> tuple[int, int]:
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[12:16] == b"IHDR"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def processes_with(text: str) -> list[str]:
    """Returns the command lines that contain `text`; a zombie process has an empty command line."""
    commands = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_text(errors="replace")
        except OSError:
            continue
        if text in command:
            commands.append(command)
    return commands


# Navigation and evaluation


def test_a_browser_has_a_version(browser: Browser) -> None:
    assert "Chrom" in browser.version


def test_an_open_page_has_loaded_and_evaluates_expressions(page: Page, site: str) -> None:
    page.open(f"{site}/")
    assert page.evaluate("document.readyState") == "complete"
    assert page.evaluate("({title: document.title, sum: [1, 2]})") == {"title": "hello", "sum": [1, 2]}
    assert page.evaluate("Promise.resolve(41).then(value => value + 1)") == 42
    assert page.evaluate("undefined") is None


def test_opening_follows_a_redirect_by_script(page: Page, site: str) -> None:
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
def test_an_error_in_a_script_is_reported(page: Page, script: str, text: str) -> None:
    with pytest.raises(BrowserError) as raised:
        page.evaluate(script)
    assert text in str(raised.value)
    assert script in str(raised.value)


def test_a_rejected_connection_is_an_error(page: Page) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(BrowserError, match="cannot be opened: net::ERR_CONNECTION_REFUSED"):
            page.open(f"http://127.0.0.1:{unused.getsockname()[1]}/")


def test_waiting_ends_when_the_script_is_true(page: Page, site: str) -> None:
    page.open(f"{site}/")
    page.evaluate("void setTimeout(() => { later = {done: 'yes'} }, 200)")
    assert page.wait_for("later.done") == "yes"


def test_a_timeout_reports_the_script_its_error_and_the_console(page: Page, site: str) -> None:
    page.open(f"{site}/noisy")
    with pytest.raises(BrowserError) as raised:
        page.wait_for("never.mind", seconds=0.2)
    assert str(raised.value).startswith("not true within 0.2 s: never.mind\n")
    assert "never is not defined" in str(raised.value)
    assert "error: broken 7" in str(raised.value)


# Console and requests


def test_the_console_has_warnings_errors_and_uncaught_exceptions(page: Page, site: str) -> None:
    page.open(f"{site}/noisy")
    wait_until(lambda: len(page.console) >= 4)
    assert page.console[:3] == ["warning: careful", "error: broken 7 true null undefined", "error: unlikely"]
    assert page.console[3].startswith("error: TypeError: uncaught indeed")
    assert len(page.console) == 4


def test_the_console_has_violations_of_the_security_policy(page: Page, site: str) -> None:
    page.open(f"{site}/strict")
    wait_until(lambda: bool(page.console))
    assert page.console[0].startswith("error: ")
    assert "Content Security Policy" in page.console[0]
    assert page.evaluate("document.title") == ""


def test_all_requests_and_all_failed_requests_are_listed(page: Page, site: str) -> None:
    page.open(f"{site}/loads")
    wait_until(lambda: len(page.requests) == 4 and bool(page.failures))
    assert page.requests[0] == f"{site}/loads"
    assert f"{site}/missing.png" in page.requests
    assert f"data:image/png;base64,{DOT}" in page.requests
    assert any(address.startswith(f"blob:{site}/") for address in page.requests)
    assert page.failures == [f"404 {site}/missing.png"]


def test_a_page_without_errors_has_an_empty_console(page: Page, site: str) -> None:
    page.open(f"{site}/")
    assert page.first_paint()
    assert (page.console, page.failures, page.requests) == ([], [], [f"{site}/"])


def test_the_first_paint_is_before_the_end_of_the_measurement(page: Page, site: str) -> None:
    start = time.perf_counter()
    page.open(f"{site}/")
    times = page.first_paint()
    elapsed = 1000 * (time.perf_counter() - start)
    assert set(times) == {"first-paint", "first-contentful-paint", "load"}
    assert all(0 < moment < elapsed for moment in times.values())


# Keys and clicks


def test_keys_send_the_events_of_a_keyboard(page: Page, site: str) -> None:
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


def test_tab_moves_the_focus_and_enter_submits_the_typed_text(page: Page, site: str) -> None:
    page.open(f"{site}/keys")
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "field"
    page.type("grüße ")
    for key in ("a", "?", "b", "Backspace"):
        page.press(key)
    page.press("Enter")
    assert page.evaluate("sent") == "grüße a?"


def test_an_unknown_key_is_an_error(page: Page) -> None:
    with pytest.raises(SettingError, match=r"unknown key 'Right'.*ArrowRight"):
        page.press("Right")


@pytest.mark.parametrize("phone", [False, True])
def test_a_click_scrolls_to_its_target(page: Page, site: str, phone: bool) -> None:
    page.resize(390, 700, phone=phone)
    page.open(f"{site}/keys")
    page.click("#far")
    assert page.evaluate("clicks") == [True]
    assert page.evaluate("scrollY") > 2000


@pytest.mark.parametrize(("selector", "why"), [("#nobody", "matches nothing"), ("#hidden", "has no size")])
def test_a_click_without_a_target_is_an_error(page: Page, site: str, selector: str, why: str) -> None:
    page.open(f"{site}/keys")
    with pytest.raises(BrowserError, match=f"{selector} {why}"):
        page.click(selector)


# Screenshots and sizes


def test_a_screenshot_has_the_size_of_the_viewport_or_of_the_whole_page(page: Page, site: str, tmp_path: Path) -> None:
    page.resize(400, 300, scale=2.0)
    page.open(f"{site}/colours")
    page.screenshot(tmp_path / "view.png")
    page.screenshot(tmp_path / "whole.png", whole=True)
    page.evaluate("scrollTo(0, 900)")
    page.screenshot(tmp_path / "scrolled.png", whole=True)
    page.resize(320, 200)
    page.screenshot(tmp_path / "small.png")
    assert size_of(tmp_path / "view.png") == (800, 600)
    assert size_of(tmp_path / "whole.png") == (800, 4000)
    assert (tmp_path / "scrolled.png").read_bytes() == (tmp_path / "whole.png").read_bytes()
    assert size_of(tmp_path / "small.png") == (320, 200)


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


def test_a_phone_is_narrow_and_has_touch(browser: Browser, site: str) -> None:
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


def test_a_reset_page_is_like_a_new_one(opened: Page, site: str) -> None:
    opened.reset(width=300, height=200, scale=2.0, dark=True, phone=True)
    opened.open(f"{site}/noisy")
    opened.open(f"{site}/loads")
    opened.evaluate("localStorage.setItem('mine', 'yes'); document.cookie = 'mine=yes'")
    wait_until(lambda: opened.console and opened.failures)
    opened.reset()
    assert opened.evaluate("location.href") == "about:blank"
    assert (opened.console, opened.failures, opened.requests) == ([], [], [])
    opened.open(f"{site}/")
    assert (opened.console, opened.failures, opened.requests) == ([], [], [f"{site}/"])
    assert opened.evaluate("[localStorage.getItem('mine'), document.cookie]") == [None, ""]
    assert opened.evaluate("[innerWidth, innerHeight, devicePixelRatio, navigator.maxTouchPoints]") == [1280, 800, 1, 0]
    assert not opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


# Shutdown


def profile(browser: Browser) -> Path:
    return Path(browser._profile.name)


def test_a_closed_browser_leaves_no_process_and_no_folder() -> None:
    browser = Browser()
    folder = profile(browser)
    page = browser.page()
    assert folder.is_dir()
    assert processes_with(folder.name)
    browser.close()
    browser.close()
    assert not folder.exists()
    wait_until(lambda: not processes_with(folder.name))
    with pytest.raises(BrowserError, match=r"the browser exited without the answer to Runtime\.evaluate"):
        page.evaluate("1")


def test_a_killed_browser_is_reported_and_cleaned_up() -> None:
    with Browser() as browser:
        folder = profile(browser)
        page = browser.page()
        os.kill(browser._process.pid, signal.SIGKILL)
        with pytest.raises(BrowserError, match="the browser exited"):
            page.wait_for("false")
    assert not folder.exists()
    wait_until(lambda: not processes_with(folder.name))


def test_a_browser_that_does_not_start_reports_its_output(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho a library is missing >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(BrowserError, match=r"(?s)without the answer to Browser\.getVersion.*a library is missing"):
        Browser(str(broken))


def test_a_command_without_an_answer_times_out(browser: Browser, page: Page) -> None:
    with pytest.raises(BrowserError, match=r"no answer to Runtime\.evaluate within 0\.2 s"):
        page.call("Runtime.evaluate", expression="new Promise(() => 0)", awaitPromise=True, seconds=0.2)
    assert not browser.ended


def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(SettingError, match="seamonkey-9 is not installed: apt install chromium"):
        Browser("seamonkey-9")


def test_a_missing_chromium_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError, match="Chromium is not installed: apt install chromium"):
        Browser()
