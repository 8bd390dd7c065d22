"""A headless Chromium, driven over a pipe by the Chrome DevTools Protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",  # needed as root; only pages of the tests are opened
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


ON_3_AND_4 = """
import fcntl, os, sys
# Away from 3 and 4 first: one of the pipes could be there.
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 5) for number in sys.argv[1:3]]
for number, pipe in zip((3, 4), pipes):
    os.dup2(pipe, number)
    os.close(pipe)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads commands from descriptor 3, and answers on 4."""


def find_chromium() -> str | None:
    """The program; None if it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Tab:
    """A tab. `errors` has what its console and scripts have reported, `requests` every address that
    it asked for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._text = b""
        self._session: str | None = None
        self._number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        command: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._text:
            assert select.select([self._from], [], [], TIMEOUT_S)[0], "the browser does not answer"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._text += data
        text, _, self._text = self._text.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        of = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(of["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(of["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and of["entry"]["level"] == "error":
            self.errors.append(str(of["entry"]))
        elif event["method"] == "Runtime.consoleAPICalled" and of["type"] == "error":
            self.errors.append(str(of["args"]))

    def open(
        self, url: str, *, width: int = 1280, height: int = 1180, is_dark: bool = False
    ) -> None:
        """Open a page in a window of this size."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that a selector finds; empty without one."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, script: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until an expression is true. An element is, and null is not."""
        deadline = time.monotonic() + timeout_s
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"{script} did not come true within {timeout_s} s"
            time.sleep(0.05)

    def picture(self, file: Path) -> None:
        """Write what is seen to a PNG file."""
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=False)[
            "data"
        ]
        file.write_bytes(base64.b64decode(data))


@contextmanager
def open_tab() -> Iterator[Tab]:
    """A tab of a browser with a fresh profile, which ends with the block."""
    program = find_chromium()
    assert program is not None
    read_commands, to_browser = os.pipe()
    from_browser, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="dq-chromium-", ignore_cleanup_errors=True) as profile:
        become = [sys.executable, "-S", "-c", ON_3_AND_4, str(read_commands), str(write_answers)]
        browser = subprocess.Popen(
            [*become, program, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(read_commands, write_answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Tab(to_browser, from_browser)
        finally:
            os.close(to_browser)
            os.close(from_browser)
            browser.kill()
            browser.wait()
