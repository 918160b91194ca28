"""Drives a headless Chromium: opens pages, presses keys, takes screenshots, and records requests and messages."""

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
    "--no-first-run --no-startup-window --disable-quic --hide-scrollbars --force-color-profile=srgb "
    "--remote-debugging-pipe"
)
# The back-forward cache would keep the connections of pages that were left.
REUSE = "--renderer-process-limit=1 --disable-site-isolation-trials --disable-back-forward-cache"
PIPES = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'  # Chromium reads commands on descriptor 3 and writes answers to 4
TIMEOUT = 300.0  # seconds per command; far more than any command takes
SHUTDOWN_TIMEOUT = 10.0  # seconds for the browser to exit
KEYS = {"Backspace": 8, "Tab": 9, "Enter": 13, "Escape": 27, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Delete": 46}
SIGNS = {" ": ("Space", 32), "/": ("Slash", 191), "?": ("Slash", 191)}
SHIFT = 8
CENTRE = """(() => {
    const element = document.querySelector(%s);
    if (!element) return null;
    element.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
    const box = element.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2, box.width * box.height];
})()"""
PAINTS = """(() => {
    const paints = performance.getEntriesByType("paint").map(paint => [paint.name, paint.startTime]);
    const times = Object.fromEntries(paints);
    times.load = performance.getEntriesByType("navigation")[0].loadEventEnd;
    return times.load && times["first-contentful-paint"] ? times : null;
})()"""


class BrowserError(TurnoutError):
    """The browser exited or did not answer, or a page raised an error."""


class Browser:
    """A Chromium process with a temporary profile, which `close` removes.

    Args:
        program: The program; by default the first of `PROGRAMS` that is installed.
        reuses_process: Whether a page that opens an address again does so in the same process, which has compiled the
            scripts already.
    """

    def __init__(self, program: str | None = None, *, reuses_process: bool = False) -> None:
        executable = next(filter(None, map(shutil.which, [program] if program else PROGRAMS)), None)
        if executable is None:
            raise SettingError(f"{program or 'Chromium'} is not installed: apt install chromium")
        self._profile = tempfile.TemporaryDirectory(prefix="turnout-browser-")
        self._log = Path(self._profile.name) / "browser.log"
        flags = [*FLAGS.split(), *(REUSE.split() if reuses_process else [])]
        command = ["sh", "-c", PIPES, "sh", executable, *flags, f"--user-data-dir={self._profile.name}"]
        environment, pipe = os.environ | {"TMPDIR": self._profile.name}, subprocess.PIPE
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
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
        """Name and version of the browser."""
        return self._version

    def page(
        self, *, width: int = 1280, height: int = 800, scale: float = 1.0, dark: bool = False, phone: bool = False
    ) -> Page:
        """Returns an empty page with its own cookies and storage.

        Args:
            width: Width in CSS pixels.
            height: Height in CSS pixels.
            scale: Device pixels per CSS pixel.
            dark: Whether the page prefers dark colours.
            phone: Whether the page has touch and the viewport of a phone.
        """
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

    def call(self, method: str, session: str = "", seconds: float = TIMEOUT, **params: Any) -> dict[str, Any]:
        """Sends a command of the DevTools protocol and returns its answer."""
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
        """Returns the first true value of `ready`, which is called again after each message."""
        until = time.monotonic() + seconds
        with self._news:
            while not (value := ready()):
                if self.ended:
                    raise BrowserError(f"the browser exited without the {what}{self._last_output()}")
                if not self._news.wait(until - time.monotonic()):
                    raise BrowserError(f"no {what} within {seconds:g} s")
            return value

    def close(self) -> None:
        """Ends the browser and its child processes, and removes the profile."""
        if self._closed:
            return
        self._closed = True
        with suppress(BrowserError):
            self.call("Browser.close", seconds=SHUTDOWN_TIMEOUT)
        self._reader.join(SHUTDOWN_TIMEOUT)
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
        """Reads messages, which end with a NUL byte, until the browser exits."""
        partial: list[bytes] = []
        try:
            while chunk := os.read(self._messages.fileno(), 1 << 16):
                first, *others = chunk.split(b"\0")
                partial.append(first)
                for piece in others:
                    self._dispatch(json.loads(b"".join(partial)))
                    partial = [piece]
        finally:
            with self._news:
                self.ended = True
                self._news.notify_all()

    def _dispatch(self, message: dict[str, Any]) -> None:
        with self._news:
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self._pages.get(message.get("sessionId", "")):
                page.handle(message["method"], message["params"])
            self._news.notify_all()

    def _last_output(self) -> str:
        """Returns the end of the browser's standard error."""
        output = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return f"; its last output:\n{output[-2000:]}" if output else ""


class Page:
    """A page, its console messages and its requests; created by `Browser.page`."""

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
        """Warnings, errors, uncaught exceptions and blocked or failed resources, as "level: text"."""
        return list(self._console)

    @property
    def requests(self) -> list[str]:
        """The URL of every request of the page; requests of workers are not recorded."""
        return list(self._requests)

    @property
    def failures(self) -> list[str]:
        """Failed requests, as "404 http://…" or with the browser's reason instead of the status."""
        return list(self._failures)

    def open(self, url: str) -> None:
        """Navigates and waits for the load event; a change of the #fragment has none."""
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(f"{url} cannot be opened: {answer['errorText']}")
        if document := answer.get("loaderId"):
            self._browser.wait(
                lambda: document in self._documents and self._documents[-1] in self._loaded,
                TIMEOUT,
                f"load event of {url}",
            )

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression, or of its promise; a JavaScript error raises BrowserError."""
        return self._evaluate(script, TIMEOUT)

    def wait_for(self, script: str, seconds: float = TIMEOUT) -> Any:
        """Waits until an expression is true, and returns its value; until then it may raise errors."""
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
                thrown = f"\nlast error: {error}"
            time.sleep(0.05)
        messages = "\n".join(self.console) or "empty"
        raise BrowserError(f"not true within {seconds:g} s: {script}{thrown}\nconsole: {messages}")

    def press(self, key: str) -> None:
        """Presses and releases a key: a character or a name, such as "t", "?", "Enter" or "ArrowRight"."""
        if key not in KEYS and len(key) != 1:
            raise SettingError(f"unknown key {key!r}; a key is one character or one of {', '.join(KEYS)}")
        text = {"Enter": "\r"}.get(key, "" if key in KEYS else key)
        code, number = (key, KEYS[key]) if key in KEYS else SIGNS.get(key, ("", 0))
        if len(key) == 1 and key.isascii() and key.isalnum():
            code, number = f"{'Digit' if key.isdigit() else 'Key'}{key.upper()}", ord(key.upper())
        shift = SHIFT if key == "?" or (len(key) == 1 and key.isupper()) else 0
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": shift}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Inserts text at the cursor."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Scrolls the first match into view and clicks on its centre."""
        centre = self.evaluate(CENTRE % json.dumps(selector))
        if not centre or not centre[2]:
            raise BrowserError(f"cannot click: {selector} {'has no size' if centre else 'matches nothing'}")
        position = {"x": centre[0], "y": centre[1]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **position)
        self.call("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **position)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **position)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Writes a PNG of the viewport, or with `whole` of the full height of the page."""
        options: dict[str, Any] = {}
        if whole:
            height = max(self._height, self.call("Page.getLayoutMetrics")["cssContentSize"]["height"])
            clip = {"x": 0, "y": 0, "width": self._width, "height": height, "scale": 1}
            options = {"captureBeyondViewport": True, "clip": clip}
        picture = self.call("Page.captureScreenshot", format="png", **options)["data"]
        path.write_bytes(base64.b64decode(picture))

    def resize(self, width: int, height: int, *, scale: float = 1.0, phone: bool = False) -> None:
        """Sets the size in CSS pixels and the device pixels per CSS pixel; `phone` has touch and a phone viewport."""
        self._width, self._height = width, height
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def emulate_dark(self, dark: bool) -> None:
        """Sets the preference for dark or light colours; reduced motion is always preferred."""
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[colours, motion])

    def first_paint(self) -> dict[str, float]:
        """Returns the milliseconds from navigation start to first paint, first content and load."""
        times: dict[str, float] = self.wait_for(PAINTS)
        return times

    def reset(
        self, *, width: int = 1280, height: int = 800, scale: float = 1.0, dark: bool = False, phone: bool = False
    ) -> None:
        """Makes this page like a new one, except that its cache remains. A new page takes longer: it starts a process.

        The arguments are those of `Browser.page`.
        """
        self.open("about:blank")
        for origin in {"/".join(address.split("/")[:3]) for address in self._requests if address.startswith("http")}:
            self.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        self.resize(width, height, scale=scale, phone=phone)
        self.emulate_dark(dark)
        for record in (self._console, self._requests, self._failures):
            record.clear()

    def close(self) -> None:
        """Closes the page and deletes its cookies and storage."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command of the DevTools protocol to this page and returns its answer."""
        return self._browser.call(method, self._session, **params)

    def handle(self, method: str, event: dict[str, Any]) -> None:
        """Records an event; called by the browser's reader thread."""
        match method:
            case "Page.frameNavigated" if event["frame"]["id"] == self._target:
                self._documents.append(event["frame"]["loaderId"])
            case "Page.lifecycleEvent" if event["frameId"] == self._target and event["name"] == "load":
                self._loaded.add(event["loaderId"])
            case "Runtime.consoleAPICalled" if event["type"] in ("warning", "error", "assert"):
                level = "warning" if event["type"] == "warning" else "error"
                self._console.append(f"{level}: {' '.join(map(_format, event['args']))}")
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
        options = {"expression": script, "awaitPromise": True, "returnByValue": True, "seconds": seconds}
        answer = self.call("Runtime.evaluate", **options)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script} threw {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")


def _format(value: dict[str, Any]) -> str:
    """Returns a value as the console prints it."""
    text = value.get("value", value.get("description", value["type"]))
    return text if isinstance(text, str) else json.dumps(text)


def _thrown(details: dict[str, Any]) -> str:
    return _format(details["exception"]) if "exception" in details else str(details["text"])
