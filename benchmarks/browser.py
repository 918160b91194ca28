"""Drives the system's Chromium with Playwright: opens pages, presses keys, takes pictures, records what goes wrong."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from playwright.async_api import Error, Request, async_playwright
from playwright.async_api import Page as Tab

from turnout.errors import SettingError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# One process shows all pages, and compiles the scripts of the dashboard once.
FLAGS = "--no-sandbox --disable-gpu --disable-quic --renderer-process-limit=1 --disable-site-isolation-trials"
TIMEOUT = 300.0  # seconds per step; far more than any step takes
PAINTS = "Object.fromEntries(performance.getEntriesByType('paint').map(paint => [paint.name, paint.startTime]))"
Result = TypeVar("Result")


class Browser:
    """A headless Chromium. Its event loop runs in a thread, because tests run event loops of their own."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise SettingError("Chromium is not installed: apt install chromium")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self._driver = self.run(async_playwright().start())
        self.chromium = self.run(self._driver.chromium.launch(executable_path=program, args=FLAGS.split()))

    def run(self, step: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of a step of Playwright."""
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(TIMEOUT)

    def page(self, **kind: Any) -> Page:
        """Returns an empty page; the arguments are those of `Page.reset`."""
        return Page(self, **kind)

    def close(self) -> None:
        """Ends the browser."""
        self.run(self.chromium.close())
        self.run(self._driver.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Page:
    """A page with its own cookies and storage, its console messages and its requests; made by `Browser.page`."""

    def __init__(self, browser: Browser, **kind: Any) -> None:
        self._run, self._chromium, self._kind = browser.run, browser.chromium, kind
        self.console: list[str] = []  # warnings, errors and uncaught exceptions
        self.requests: list[str] = []
        self.failures: list[str] = []  # requests without an answer, or with an error as the answer
        self._tab = self._run(self._new_tab(**kind))

    async def _new_tab(
        self, *, width: int = 1280, height: int = 800, scale: float = 1.0, dark: bool = False, phone: bool = False
    ) -> Tab:
        tab = await self._chromium.new_page(
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            is_mobile=phone,
            has_touch=phone,
        )
        tab.on("console", lambda sent: self.console.append(sent.text) if sent.type in ("warning", "error") else None)
        tab.on("pageerror", lambda error: self.console.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.on("response", lambda got: self.failures.append(f"{got.status} {got.url}") if got.status >= 400 else None)
        tab.on("requestfailed", self._record_failure)
        return tab

    def _record_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page aborts what it no longer needs
            self.failures.append(f"{request.failure} {request.url}")

    def reset(self, **kind: Any) -> None:
        """Makes this page like a new one of this kind: `width`, `height`, `scale`, `dark`, or `phone` with touch.

        A page of the same kind is used again, because a new one compiles all scripts again.
        """
        if kind == self._kind:
            self.open("about:blank")
            self._run(self._tab.context.set_storage_state({"cookies": [], "origins": []}))
        else:
            self.close()
            self._kind, self._tab = kind, self._run(self._new_tab(**kind))
        for record in (self.console, self.requests, self.failures):
            record.clear()

    def open(self, url: str) -> None:
        """Navigates and waits for the load event."""
        self._run(self._tab.goto(url, timeout=TIMEOUT * 1e3))

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression, or of its promise."""
        return self._run(self._tab.evaluate(script))

    def wait_for(self, script: str, seconds: float = TIMEOUT) -> Any:
        """Waits until an expression is true, and returns its value; until then it may raise errors."""
        caught = f"() => {{ try {{ return {script} }} catch {{ return null }} }}"
        try:
            value = self._run(self._tab.wait_for_function(caught, polling=50, timeout=seconds * 1e3))
        except Error as error:
            raise TimeoutError(f"not true within {seconds:g} s: {script}\nconsole: {self.console}") from error
        return self._run(value.json_value())

    def press(self, key: str) -> None:
        """Presses and releases a key, such as "t", "?", "Enter" or "ArrowRight"."""
        self._run(self._tab.keyboard.press(key))

    def type(self, text: str) -> None:
        """Inserts text at the cursor."""
        self._run(self._tab.keyboard.insert_text(text))

    def hover(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self._run(self._tab.mouse.move(x, y))

    def click(self, selector: str) -> None:
        """Scrolls to the first match and clicks on it."""
        self._run(self._tab.locator(selector).first.click())

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Writes a PNG of the viewport, or with `whole` of the full height of the page."""
        self._run(self._tab.screenshot(path=path, full_page=whole))

    def first_paint(self) -> dict[str, float]:
        """Returns the milliseconds from the start of the navigation to the first paint and the first content."""
        return dict(self.wait_for(f"(paints => paints['first-contentful-paint'] && paints)({PAINTS})"))

    def close(self) -> None:
        """Closes the page and deletes its cookies and storage."""
        self._run(self._tab.context.close())
