"""A browser without a screen, driven over a pair of pipes: what a page shows, and what happens when it is used."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
TIMEOUT_S = 30.0
_HIGH_FD = 20


class Tab:
    """One page of one browser. Everything it logs, and every request that it makes, is kept."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._received = b""
        self._serial = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """Errors, warnings, and what the page's policy did not allow."""
        self.urls: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser for something, and wait for its answer."""
        self._serial += 1
        message: dict[str, Any] = {"id": self._serial, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._serial:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            data = os.read(self._from, 1 << 16)
            assert data, "the browser is gone"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _hear(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params["args"])[:2000])
            case "Network.requestWillBeSent":
                self.urls.append(params["request"]["url"])
            case _:
                pass

    # ------------------------------------------------------------ a page

    def open(self, url: str, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Go to a page, in a window of this size."""
        self.resize(width, height)
        scheme = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.run("window.isLeft = true")
        self.call("Page.navigate", url=url)
        self.until("!window.isLeft && document.documentElement && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, expression: str) -> Any:
        """What an expression gives in the page, as data."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until an expression gives something that is true."""
        deadline = time.monotonic() + timeout_s
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"waited in vain for {expression}; {self.complaints}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """On the first element of this kind, as it can be clicked."""
        self.until(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Into a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def text(self, selector: str = "body") -> str:
        """What can be read there."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A browser with nothing in it but one page."""
    ours, theirs = [], []
    for is_input in (True, False):
        reader, writer = os.pipe()
        mine, other = (writer, reader) if is_input else (reader, writer)
        theirs.append(fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD))  # above those that it takes over
        os.close(other)
        ours.append(mine)

    def hand_over() -> None:
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [str(CHROMIUM), *flags],
        pass_fds=(3, 4),
        preexec_fn=hand_over,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for descriptor in theirs:
        os.close(descriptor)
    try:
        tab = Tab(*ours)
        yield tab
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(TIMEOUT_S)
        for descriptor in ours:
            os.close(descriptor)
