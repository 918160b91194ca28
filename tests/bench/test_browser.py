"""The helper around Playwright notices what the tests of the dashboard rely on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.browser import PROGRAMS, Browser, Page
from turnout.errors import SettingError
from waiting import wait_until

pytestmark = pytest.mark.thorough
needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, PROGRAMS)), reason="Chromium is not installed: apt install chromium"
)
CONTENT = b"""<!doctype html><html><meta name="viewport" content="width=device-width">
<body style="margin: 0; height: 2000px"><link rel="icon" href="data:,">
<script>found = document.cookie + localStorage.length;
document.cookie = "known=1"; localStorage.known = 1</script></body></html>"""


class Site(BaseHTTPRequestHandler):
    """Has one page."""

    def do_GET(self) -> None:
        status = 404 if self.path == "/missing" else 200  # Chromium may ask for an icon, too
        self.send_response(status)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *details: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Browser() as browser, closing(browser.page()) as page:
        yield page


@needs_browser
def test_whatever_goes_wrong_in_a_page_is_recorded(page: Page, site: str) -> None:
    page.open(site)
    assert (page.console, page.failures, page.requests) == ([], [], [site])
    page.evaluate("console.info('harmless'), console.warn('careful'), setTimeout(() => { throw Error('uncaught') })")
    page.evaluate(f"fetch('{site}missing').then(answer => answer.status)")
    page.evaluate("fetch('http://127.0.0.1:1/').catch(() => null)")
    page.evaluate("stop = new AbortController(), fetch('/', stop).catch(() => null), setTimeout(() => stop.abort())")
    page.evaluate("setTimeout(() => window.later = {value: 7}, 100)")
    assert page.wait_for("later.value", 10) == 7, "an expression that throws is not true yet"
    wait_until(lambda: {"careful", "uncaught"} <= set(page.console) and len(page.failures) == 2, "all is recorded")
    assert "harmless" not in page.console
    assert page.failures[0] == f"404 {site}missing"
    assert page.failures[1].endswith("http://127.0.0.1:1/")


@needs_browser
def test_a_page_is_reset_to_a_new_one_of_any_kind(page: Page, site: str, tmp_path: Path) -> None:
    for kind in ({}, {"width": 390, "height": 844, "scale": 2.0, "dark": True, "phone": True}, {}):
        page.reset(**kind)
        assert (page.console, page.failures, page.requests) == ([], [], [])
        page.open(f"{site}missing")
        page.reset(**kind)
        page.open(site)
        assert page.evaluate("found") == "0", "there is neither a cookie nor anything stored"
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is bool(kind)
        assert page.evaluate("navigator.maxTouchPoints > 0") is bool(kind)
        page.screenshot(tmp_path / "whole.png", whole=True)
        with Image.open(tmp_path / "whole.png") as picture:
            assert picture.size == ((780, 4000) if kind else (1280, 2000))


@needs_browser
def test_a_condition_that_does_not_become_true_is_an_error(page: Page, site: str) -> None:
    page.reset()
    page.open(site)
    with pytest.raises(TimeoutError, match=r"not true within 0\.1 s: 1 > 2"):
        page.wait_for("1 > 2", 0.1)


def test_a_missing_chromium_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SettingError, match="apt install chromium"):
        Browser()
