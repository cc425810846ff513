"""A small driver of a headless Chromium over its DevTools websocket. Knows nothing of the chat page."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 60.0
WAIT_STEP_S = 0.05
KEY_CODES = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "Delete": 46,
}


# An expression that is asked for while one document takes another's place has no document to look at.
BETWEEN = ("Execution context was destroyed", "Cannot find context", "Inspected target navigated")


class NoDocument(RuntimeError):
    """The page is on its way from one document to the next."""


class Browser:
    """A page, or the browser itself."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.ensure_future(self._read())
        self._noted: list[str] = []
        self._expected: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Console errors and policy violations so far, but those that are expected."""
        return [one for one in self._noted if not any(text in one for text in self._expected)]

    def expect_problem(self, text: str) -> None:
        """What holds this text is the test's own doing, whenever it comes: the browser notes every answer
        of 4xx and 5xx."""
        self._expected.append(text)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command; raises RuntimeError with the browser's complaint."""
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(CALL_TIMEOUT_S):
            told = await answer
        if "error" in told:
            complaint = f"{method}: {told['error']}"
            raise (NoDocument if any(one in complaint for one in BETWEEN) else RuntimeError)(
                complaint
            )
        result = told["result"]
        assert isinstance(result, dict)
        return result

    async def show(self, *, width: int, height: int, scheme: str = "light") -> None:
        """Set the window's size and the reader's colour scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def open(self, url: str) -> None:
        """Load an address and wait until the document is complete."""
        await self._leave("Page.navigate", url=url)

    async def reload(self) -> None:
        """Load the same address again, and wait until the new document is complete."""
        await self._leave("Page.reload")

    async def _leave(self, method: str, **parameters: Any) -> None:
        """Both commands answer before the old document is gone: it is marked, and the mark looked for."""
        await self.value("window.isLeft = true")
        await self.call(method, **parameters)
        await self.wait_for("!window.isLeft && document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression (or promise) gives, as JSON."""
        told = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    async def wait_for(self, expression: str, *, timeout_s: float = 60.0) -> None:
        """Wait until an expression is true; raises TimeoutError naming it."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._holds(expression):
                    await asyncio.sleep(WAIT_STEP_S)
        except TimeoutError as error:
            raise TimeoutError(f"never true in the page: {expression}") from error

    async def _holds(self, expression: str) -> bool:
        try:
            return bool(await self.value(f"Boolean({expression})"))
        except NoDocument:
            return False

    async def click(self, selector: str) -> None:
        """Click the first element that a CSS selector finds, once it is there and can be clicked."""
        found = f"document.querySelector({json.dumps(selector)})"
        await self.wait_for(
            f"{found}?.checkVisibility() && !{found}.disabled && ({found}.click(), true)"
        )

    async def type(self, text: str) -> None:
        """Type into the focused element."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press and release one key, such as Enter or Escape."""
        code = KEY_CODES[key]
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    async def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG file."""
        told = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(told["data"]))

    async def close(self) -> None:
        """Stop listening."""
        self._reader.cancel()
        await asyncio.wait({self._reader})

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self._noted.append(str(told["params"]))


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    """The DevTools address of a headless browser: one for all tests, since its start is what costs."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _address(Path(profile) / "DevToolsActivePort")
        finally:
            process.terminate()
            process.wait()


@asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """A page of a profile of its own: no cookie, cache or storage of another test's."""
    async with aiohttp.ClientSession() as session, _opened(session, chromium) as root:
        profile = await root.call("Target.createBrowserContext")
        target = await root.call("Target.createTarget", url="about:blank", **profile)
        server, _, _ = chromium.partition("/devtools/")
        async with _opened(session, f"{server}/devtools/page/{target['targetId']}") as page:
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            yield page
        await root.call("Target.disposeBrowserContext", **profile)


@asynccontextmanager
async def _opened(session: aiohttp.ClientSession, address: str) -> AsyncIterator[Browser]:
    async with session.ws_connect(address, max_msg_size=64 * 1024 * 1024) as socket:
        target = Browser(socket)
        yield target
        await target.close()


def _address(port_file: Path) -> str:
    """Of the two lines that the browser writes when it is ready: the port, and the path."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        lines = port_file.read_text().splitlines() if port_file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert time.monotonic() < deadline, "the browser did not start"
        time.sleep(WAIT_STEP_S)
