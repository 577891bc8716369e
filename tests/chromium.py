"""Debian's chromium without a window, told what to do through its DevTools protocol.

The protocol runs over two pipes (`--remote-debugging-pipe`), a JSON object and a zero byte each
way: nothing has to be installed beside the browser.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

EXECUTABLE = shutil.which("chromium")

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
_READ, _WRITE = 3, 4  # where chromium expects the pipes
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "ArrowRight": (39, ""), "ArrowDown": (40, "")}


class Browser:
    """A running chromium; what it says without being asked is kept in `events`."""

    def __init__(self, orders: BinaryIO, answers: BufferedReader) -> None:
        self._orders, self._answers = orders, answers
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._orders.write(json.dumps(message).encode() + b"\0")
        self._orders.flush()
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not (more := self._answers.read1()):
                raise RuntimeError("chromium has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    @contextmanager
    def page(self, path: Path) -> Iterator["Page"]:
        """A file, opened."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        try:
            page = Page(self, session)
            page.wait_until("location.protocol === 'file:' && document.readyState === 'complete'")
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    """An open page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def show(self, *, width: int, dark: bool = False) -> None:
        """In a window of a width, in light or dark."""
        self._browser.call(
            "Emulation.setDeviceMetricsOverride", self._session,
            width=width, height=844, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._browser.call("Emulation.setEmulatedMedia", self._session, features=[scheme])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._browser.call(
            "Runtime.evaluate", self._session, expression=script, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        code, typed = _KEYS[key]
        for kind in ("keyDown" if typed else "rawKeyDown", "keyUp"):
            self._browser.call(
                "Input.dispatchKeyEvent", self._session,
                type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=typed,
            )  # fmt: skip

    def draw(self, points: list[tuple[float, float]], *, touch: bool = False) -> None:
        """Press, move and let go, with the mouse or with a finger."""

        def mouse(kind: str, x: float, y: float) -> None:
            self._browser.call(
                "Input.dispatchMouseEvent", self._session,
                type=kind, x=x, y=y, button="left", buttons=1, clickCount=1,
            )  # fmt: skip

        def finger(kind: str, *at: dict[str, float]) -> None:
            self._browser.call("Input.dispatchTouchEvent", self._session, type=kind, touchPoints=at)

        first, *others = points
        if touch:
            finger("touchStart", {"x": first[0], "y": first[1]})
            for x, y in others:
                finger("touchMove", {"x": x, "y": y})
            finger("touchEnd")
        else:
            mouse("mousePressed", *first)
            for point in others:
                mouse("mouseMoved", *point)
            mouse("mouseReleased", *points[-1])

    def wait_until(self, condition: str) -> None:
        """Wait until something is so: scrolling takes a few frames."""
        until = time.monotonic() + 10
        while not self.run(condition):
            if time.monotonic() > until:
                raise AssertionError(f"never: {condition}")
            time.sleep(0.02)

    def said(self) -> list[str]:
        """All that the console, the log and failed scripts have to say."""
        found = []
        for event in self._browser.events:
            told = event.get("params", {})
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(str(told["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(told["entry"]["text"])
        return found

    def asked_for(self) -> list[str]:
        """Addresses that the page asked for, other than those that it carries in itself."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event["method"] == "Network.requestWillBeSent"
            and not event["params"]["request"]["url"].startswith("data:")
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page, to look at."""
        size = self._browser.call("Page.getLayoutMetrics", self._session)["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._browser.call(
            "Page.captureScreenshot", self._session, clip=clip, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of one's own, gone at the end with all that it wrote."""
    assert EXECUTABLE is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Away from 3 and 4, so that moving them there tramples on neither.
        moved = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 20) for pipe in (theirs_in, theirs_out)]
        os.close(theirs_in)
        os.close(theirs_out)
        move = f'exec "$0" "$@" {_READ}<&{moved[0]} {_WRITE}>&{moved[1]}'
        process = subprocess.Popen(
            ["bash", "-c", move, EXECUTABLE, *_FLAGS, f"--user-data-dir={home}"],
            env=os.environ | {"TMPDIR": home}, pass_fds=moved,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for pipe in moved:
            os.close(pipe)
        try:
            with open(ours_out, "wb") as orders, open(ours_in, "rb") as answers:
                browser = Browser(orders, answers)
                yield browser
                browser.call("Browser.close")
                process.wait(timeout=20)  # until it has written its last file into `home`
        finally:
            process.kill()
            process.wait()
