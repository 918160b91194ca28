"""A Chromium without a window: it opens pages, presses keys, takes pictures and tells what a page loaded."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from turnout.errors import SettingError, TurnoutError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --disable-quic --hide-scrollbars --force-color-profile=srgb --remote-debugging-pipe"
)
PIPES = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'  # Chromium takes commands on 3 and answers on 4
PATIENCE = 60.0  # seconds for a command
FAREWELL = 10.0  # seconds for the browser to end by itself
KEYS = {"Backspace": 8, "Tab": 9, "Enter": 13, "Escape": 27, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Delete": 46}
SIGNS = {" ": ("Space", 32), "/": ("Slash", 191), "?": ("Slash", 191)}
SHIFT = 8
MIDDLE = """(() => {
    const found = document.querySelector(%s);
    if (!found) return null;
    found.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
    const box = found.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2, box.width * box.height];
})()"""
PAINTS = """(() => {
    const paints = performance.getEntriesByType("paint").map(paint => [paint.name, paint.startTime]);
    const times = Object.fromEntries(paints);
    times.load = performance.getEntriesByType("navigation")[0].loadEventEnd;
    return times.load && times["first-contentful-paint"] ? times : null;
})()"""


class BrowserError(TurnoutError):
    """The browser ended, did not answer, or a page did not do what it was told."""


class Browser:
    """One Chromium with a profile of its own, which is gone after `close`."""

    def __init__(self, program: str | None = None) -> None:
        found = next(filter(None, map(shutil.which, [program] if program else PROGRAMS)), None)
        if found is None:
            raise SettingError(f"no {program or 'Chromium'} is installed; get one with: apt install chromium")
        self._profile = tempfile.TemporaryDirectory(prefix="turnout-browser-")
        self._log = Path(self._profile.name) / "browser.log"
        command = ["sh", "-c", PIPES, "sh", found, *FLAGS.split(), f"--user-data-dir={self._profile.name}"]
        place, pipe = os.environ | {"TMPDIR": self._profile.name}, subprocess.PIPE
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, env=place, start_new_session=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._messages = self._process.stdin, self._process.stdout
        self._news = threading.Condition()
        self._writing = threading.Lock()
        self._sent = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self.ended = self._closed = False
        self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
        self._reader.start()
        try:
            self._version = str(self.call("Browser.getVersion")["product"])
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> str:
        """Its name and number."""
        return self._version

    def page(
        self, *, width: int = 1280, height: int = 800, scale: float = 1.0, dark: bool = False, phone: bool = False
    ) -> Page:
        """An empty page with cookies and storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, context, target, session)
        with self._news:
            self._pages[session] = page
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call("Page.setLifecycleEventsEnabled", enabled=True)
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.resize(width, height, scale=scale, phone=phone)
        page.emulate_dark(dark)
        return page

    def call(self, method: str, session: str = "", seconds: float = PATIENCE, **params: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and wait for its answer."""
        with self._news:
            self._sent += 1
            number = self._sent
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        with suppress(OSError, ValueError), self._writing:
            self._commands.write(json.dumps(message).encode() + b"\0")
            self._commands.flush()
        answer = self.wait(lambda: self._answers.pop(number, None), seconds, f"answer to {method}")
        if "error" in answer:
            raise BrowserError(f"{method} failed: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait(self, ready: Callable[[], Any], seconds: float, what: str) -> Any:
        """The first true value of `ready`, which is asked again after each message."""
        until = time.monotonic() + seconds
        with self._news:
            while not (found := ready()):
                if self.ended:
                    raise BrowserError(f"the browser ended and gave no {what}{self._last_words()}")
                if not self._news.wait(until - time.monotonic()):
                    raise BrowserError(f"no {what} within {seconds:g} s")
            return found

    def close(self) -> None:
        """End the browser and everything it started, and remove its profile."""
        if self._closed:
            return
        self._closed = True
        with suppress(BrowserError):
            self.call("Browser.close", seconds=FAREWELL)
        self._reader.join(FAREWELL)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        with suppress(OSError):
            self._commands.close()
        self._messages.close()
        self._profile.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        """Take in what the browser sends, each message ended by a NUL, until it ends."""
        begun: list[bytes] = []
        try:
            while chunk := os.read(self._messages.fileno(), 1 << 16):
                first, *others = chunk.split(b"\0")
                begun.append(first)
                for piece in others:
                    self._take(json.loads(b"".join(begun)))
                    begun = [piece]
        finally:
            with self._news:
                self.ended = True
                self._news.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        with self._news:
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self._pages.get(message.get("sessionId", "")):
                page.take(message["method"], message["params"])
            self._news.notify_all()

    def _last_words(self) -> str:
        """The end of what it printed."""
        words = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return f"; it printed last:\n{words[-2000:]}" if words else ""


class Page:
    """One page, and what it said and loaded so far; made by `Browser.page`."""

    def __init__(self, browser: Browser, context: str, target: str, session: str) -> None:
        self._browser, self._context, self._target, self._session = browser, context, target, session
        self._width, self._height = 0, 0
        self._documents: list[str] = []
        self._loaded: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._console: list[str] = []
        self._requests: list[str] = []
        self._failures: list[str] = []

    @property
    def console(self) -> list[str]:
        """Warnings, errors, uncaught exceptions and what the browser refused or could not load: "level: text"."""
        return list(self._console)

    @property
    def requests(self) -> list[str]:
        """The address of every request of the page; those of workers are not seen."""
        return list(self._requests)

    @property
    def failures(self) -> list[str]:
        """Requests that failed: "404 http://…", or the browser's reason in place of the number."""
        return list(self._failures)

    def open(self, url: str) -> None:
        """Go there and wait for the load event; a mere change of #fragment loads nothing."""
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(f"{url} cannot be opened: {answer['errorText']}")
        if document := answer.get("loaderId"):
            self._browser.wait(
                lambda: document in self._documents and self._documents[-1] in self._loaded,
                PATIENCE,
                f"load event of {url}",
            )

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is; a thrown error is a BrowserError."""
        return self._evaluate(script, PATIENCE)

    def wait_for(self, script: str, seconds: float = PATIENCE) -> Any:
        """The value of an expression as soon as it is true; until then it may throw."""
        until = time.monotonic() + seconds
        thrown = ""
        while (left := until - time.monotonic()) > 0:
            try:
                if value := self._evaluate(script, max(left, 1.0)):
                    return value
                thrown = ""
            except BrowserError as error:
                if self._browser.ended:
                    raise
                thrown = f"\nat last: {error}"
            time.sleep(0.05)
        said = "\n".join(self.console) or "nothing"
        raise BrowserError(f"not true within {seconds:g} s: {script}{thrown}\nthe console says: {said}")

    def press(self, key: str) -> None:
        """Press and release a key, by its character or its name: "t", "?", "Enter", "ArrowRight"."""
        if key not in KEYS and len(key) != 1:
            raise SettingError(f"no key is called {key!r}; a key is one character or one of {', '.join(KEYS)}")
        text = {"Enter": "\r"}.get(key, "" if key in KEYS else key)
        code, number = (key, KEYS[key]) if key in KEYS else SIGNS.get(key, ("", 0))
        if len(key) == 1 and key.isascii() and key.isalnum():
            code, number = f"{'Digit' if key.isdigit() else 'Key'}{key.upper()}", ord(key.upper())
        shift = SHIFT if key == "?" or (len(key) == 1 and key.isupper()) else 0
        named = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": shift}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text: str) -> None:
        """Put text where the cursor is."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Scroll the first match into view and click on its middle."""
        middle = self.evaluate(MIDDLE % json.dumps(selector))
        if not middle or not middle[2]:
            raise BrowserError(f"nothing to click on: {selector} {'has no size' if middle else 'matches nothing'}")
        where = {"x": middle[0], "y": middle[1]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        self.call("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **where)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **where)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of what is in view, or of the whole height of the page."""
        more: dict[str, Any] = {}
        if whole:
            height = max(self._height, self.call("Page.getLayoutMetrics")["cssContentSize"]["height"])
            clip = {"x": 0, "y": 0, "width": self._width, "height": height, "scale": 1}
            more = {"captureBeyondViewport": True, "clip": clip}
        picture = self.call("Page.captureScreenshot", format="png", **more)["data"]
        path.write_bytes(base64.b64decode(picture))

    def resize(self, width: int, height: int, *, scale: float = 1.0, phone: bool = False) -> None:
        """Another size, in CSS pixels of `scale` dots; `phone` has touch and a phone's viewport."""
        self._width, self._height = width, height
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def emulate_dark(self, dark: bool) -> None:
        """Prefer dark or light colours; motion is always reduced."""
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[colours, motion])

    def first_paint(self) -> dict[str, float]:
        """Milliseconds from the start of the navigation to the first paint, the first content and the load."""
        times: dict[str, float] = self.wait_for(PAINTS)
        return times

    def close(self) -> None:
        """Close it and forget its cookies and storage."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol to this page."""
        return self._browser.call(method, self._session, **params)

    def take(self, method: str, event: dict[str, Any]) -> None:
        """Note one event; the browser's reader calls this."""
        match method:
            case "Page.frameNavigated" if event["frame"]["id"] == self._target:
                self._documents.append(event["frame"]["loaderId"])
            case "Page.lifecycleEvent" if event["frameId"] == self._target and event["name"] == "load":
                self._loaded.add(event["loaderId"])
            case "Runtime.consoleAPICalled" if event["type"] in ("warning", "error", "assert"):
                level = "warning" if event["type"] == "warning" else "error"
                self._console.append(f"{level}: {' '.join(map(_shown, event['args']))}")
            case "Runtime.exceptionThrown":
                self._console.append(f"error: {_thrown(event['exceptionDetails'])}")
            case "Log.entryAdded" if event["entry"]["level"] in ("warning", "error"):
                entry = event["entry"]
                self._console.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}".rstrip())
            case "Network.requestWillBeSent":
                self._addresses[event["requestId"]] = event["request"]["url"]
                self._requests.append(event["request"]["url"])
            case "Network.webSocketCreated":
                self._requests.append(event["url"])
            case "Network.responseReceived" if event["response"]["status"] >= 400:
                self._failures.append(f"{event['response']['status']} {event['response']['url']}")
            case "Network.loadingFailed" if not event.get("canceled"):
                reason = event["errorText"] or event.get("blockedReason", "failed")
                self._failures.append(f"{reason} {self._addresses.get(event['requestId'], '')}".rstrip())

    def _evaluate(self, script: str, seconds: float) -> Any:
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True, "seconds": seconds}
        answer = self.call("Runtime.evaluate", **asked)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script} threw {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")


def _shown(value: dict[str, Any]) -> str:
    """One value as the console would print it."""
    shown = value.get("value", value.get("description", value["type"]))
    return shown if isinstance(shown, str) else json.dumps(shown)


def _thrown(details: dict[str, Any]) -> str:
    return _shown(details["exception"]) if "exception" in details else str(details["text"])
