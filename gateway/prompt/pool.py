"""Large prompts are rendered in processes of their own: neither a long conversation nor a hostile template holds the loop up.

Invariant: each render ends with a Rendering, or with an error within the time that is left to those before it and `render_s` for
itself. A worker that takes longer, dies or talks nonsense is killed and started again; what waits for it goes on. A caller that
leaves disturbs nobody: its render is dropped, or its answer is.

With its worker this is the shell of the package, which is pure otherwise: see `gateway.prompt.worker` for what is spoken.
"""

import asyncio
import contextlib
import sys
from array import array
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self, cast
from zlib import crc32

import structlog

from gateway.errors import BadRequest, ContextTooLong, Draining, GatewayError, InternalError, Rejected
from gateway.prompt.renderer import Draft, Rendering
from gateway.prompt.template import stopped
from gateway.prompt.worker import HEAD_BYTES, Answer, Ask, Refused, Rendered, Spoken, TooLong, framed
from gateway.wire import jsonio

_log = structlog.get_logger("interlock.prompt")

MAX_WAITING = 64  # prompts that wait for one worker
_COMMAND = ("-P", "-m", "gateway.prompt.worker")  # -P: nothing is imported from the folder where the gateway was started
_START_S = 120.0  # reading the models, from a slow disk too
_TRIES = 2  # the worker may have died of what came before, or while it was idle
_MAX_ANSWER_BYTES = 1 << 28  # four times what the longest text and its ids take
_READ_BYTES = 1 << 20
_LOG_BYTES = 8192
_FIRST_MESSAGES = 2
_KEPT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH")  # no other variable reaches a worker: some hold keys
_ARENAS: Mapping[str, str] = {"MALLOC_ARENA_MAX": "2"}  # one for each thread would hold freed memory back


class RenderPool:
    """Workers that render for models, by name. Use as `async with`.

    A conversation is rendered by the same worker each time, which knows its earlier segments.
    """

    def __init__(self, models: Mapping[str, Spoken], *, workers: int, render_s: float, environ: Mapping[str, str]) -> None:
        spoken = list(dict.fromkeys(models.values()))
        self._places = {name: spoken.index(model) for name, model in models.items()}
        kept = {**_ARENAS, **{name: environ[name] for name in _KEPT if name in environ}}
        self._workers = [_Worker(jsonio.encode(spoken).decode(), kept, render_s) for _ in range(workers)]

    async def __aenter__(self) -> Self:
        """The workers start in the background: renders that come earlier wait."""
        self._running = [asyncio.create_task(worker.run()) for worker in self._workers]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def render(self, model: str, draft: Draft) -> Rendering:
        """As `Renderer.render`, and raises Rejected where too many wait, and InternalError where the worker died of it."""
        answer = await self._worker(model, draft).answer(Ask(self._places[model], draft))
        match answer:
            case Rendered():
                ids = array("I")
                ids.frombytes(answer.ids)
                return Rendering(answer.text, tuple(ids), answer.lost_bytes, answer.marked, answer.left_out)
            case Refused():
                raise BadRequest(answer.message, param=answer.param)
            case TooLong():
                raise ContextTooLong(answer.least_tokens, draft.context_tokens or 0, at_least=True)

    def _worker(self, model: str, draft: Draft) -> "_Worker":
        first = jsonio.encode([model, draft.variables.get("messages", [])[:_FIRST_MESSAGES]])
        return self._workers[crc32(first) % len(self._workers)]


class _Gone(Exception):
    """The worker's process has ended, or must."""


class _NotStarted(Exception):
    """There is no worker's process: it did not come to read its models."""


class _Work:
    """A render that is asked for: its frame, and where its answer goes, which nobody reads where the caller has left."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.losses = 0
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Answer) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)

    def fail(self, error: GatewayError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class _Worker:
    """One process after the other for these models (JSON), and what waits for them: one render at a time, in the order of their
    coming."""

    def __init__(self, models: str, environ: Mapping[str, str], render_s: float) -> None:
        self._models = models
        self._environ = environ
        self._render_s = render_s
        self._decoder: jsonio.Decoder[Answer] = jsonio.Decoder(Answer)  # type: ignore[arg-type]
        self._waiting: asyncio.Queue[_Work] = asyncio.Queue(MAX_WAITING)
        self._work: _Work | None = None  # taken up, and not answered yet
        self._ended = False

    async def answer(self, ask: Ask) -> Answer:
        """Raises a GatewayError where there is none."""
        try:
            work = _Work(framed(jsonio.encode(ask)))
        except RecursionError:
            raise BadRequest("The messages are nested too deeply.", param="messages") from None
        if self._ended:
            raise _ending()
        try:
            self._waiting.put_nowait(work)
        except asyncio.QueueFull:
            raise Rejected("Too many long prompts wait to be rendered.", reason="queue_full", retry_after_s=1.0) from None
        return await work.answered

    async def run(self) -> None:
        """Until it is cancelled. The next process starts as soon as the last has ended; where that one did not even start, the
        next starts with the next render."""
        try:
            while True:
                try:
                    async with _process(self._models, self._environ) as process:
                        await self._serve(process)
                except _NotStarted as why:
                    _log.error("a render worker did not start", why=str(why))
                    self._work = self._work or await self._next()
                    self._lost()
                except _Gone as why:
                    _log.warning("a render worker is started again", why=str(why))
                    self._lost()
        finally:
            self._end()

    async def _serve(self, process: "_Process") -> None:
        """Raises _Gone."""
        while True:
            work = self._work = self._work or await self._next()
            try:
                async with asyncio.timeout(self._render_s):
                    data = await process.answer(work.frame)
                work.settle(self._decoder.decode(data))
            except TimeoutError:
                work.fail(stopped(f"it takes more than {self._render_s:g} s"))
                self._work = None
                raise _Gone(f"a render took more than {self._render_s:g} s") from None
            except jsonio.JsonError as error:
                raise _Gone(f"its answer is wrong: {error}") from None
            self._work = None

    async def _next(self) -> _Work:
        while (work := await self._waiting.get()).answered.done():
            pass  # its caller has left
        return work

    def _lost(self) -> None:
        """The render that the worker had, if it had one, goes to the next worker, or has had its tries."""
        if self._work is None:
            return
        self._work.losses += 1
        if self._work.losses == _TRIES:
            self._work.fail(InternalError("The gateway failed to render this request; its log has the details."))
            self._work = None

    def _end(self) -> None:
        self._ended = True
        left = [] if self._work is None else [self._work]
        while not self._waiting.empty():
            left.append(self._waiting.get_nowait())
        for work in left:
            work.fail(_ending())


def _ending() -> Draining:
    return Draining("The gateway is shutting down.")


class _Process:
    """A running worker's two ends."""

    def __init__(self, asks: asyncio.StreamWriter, answers: asyncio.StreamReader) -> None:
        self._asks = asks
        self._answers = answers

    async def answer(self, frame: bytes) -> bytes:
        """What it says to the frame. Raises _Gone; after that, or where this is cut short, it can be asked no more."""
        if self._asks.is_closing():
            raise _Gone("it has ended")
        self._asks.write(frame)
        return await self.read()

    async def read(self) -> bytes:
        """Its next frame. Raises _Gone."""
        try:
            size = int.from_bytes(await self._answers.readexactly(HEAD_BYTES), "big")
            if size > _MAX_ANSWER_BYTES:
                raise _Gone(f"its answer is of {size} bytes")
            return await self._answers.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            raise _Gone("it has ended") from None


@contextlib.asynccontextmanager
async def _process(models: str, environ: Mapping[str, str]) -> AsyncIterator[_Process]:
    """A worker that has read its models; it is killed on the way out. Raises _NotStarted."""
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, *_COMMAND, models, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_READ_BYTES, env=environ
        )
    except OSError as error:
        raise _NotStarted(error.strerror or str(error)) from None
    asks = cast(asyncio.StreamWriter, child.stdin)
    logging = asyncio.create_task(_logged(cast(asyncio.StreamReader, child.stderr)))
    try:
        process = _Process(asks, cast(asyncio.StreamReader, child.stdout))
        try:
            async with asyncio.timeout(_START_S):
                await process.read()
        except (TimeoutError, _Gone) as error:
            raise _NotStarted(str(error) or f"it took more than {_START_S:g} s") from None
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        asks.close()
        await child.wait()
        await logging


async def _logged(said: asyncio.StreamReader) -> None:
    """What a worker writes on standard error."""
    while data := await said.read(_LOG_BYTES):
        _log.warning("a render worker says", text=data.decode(errors="replace"))
