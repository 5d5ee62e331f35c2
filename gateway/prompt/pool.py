"""Prompts that take long are rendered in processes of their own: neither a conversation nor a hostile template holds the loop up.

Invariant: each render ends with a Rendering or an error. It waits at most `wait_s` for a worker, and then has `render_s` of
processor time, in which it is the template that is slow; a worker that does not answer in twice that time is itself stalled. A
worker that is out of time, dies or talks nonsense is ended and started again; what it had is tried once more, unless it used up
its own time. A caller that leaves disturbs nobody: its render is dropped, or its answer is.

With its worker this is the shell of the package, which is pure otherwise: see `gateway.prompt.worker` for what is spoken.
"""

import asyncio
import contextlib
import signal
import sys
from array import array
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self, cast
from zlib import crc32

import structlog

from gateway.errors import BadRequest, ContextTooLong, Draining, GatewayError, Rejected
from gateway.prompt.renderer import Draft, Rendering
from gateway.prompt.template import Stopped
from gateway.prompt.worker import HEAD_BYTES, TOO_DEEP, Answer, Ask, Made, Refused, Spoken, TooLong, framed
from gateway.wire import jsonio

_log = structlog.get_logger("interlock.prompt")

MAX_WAITING = 64  # prompts that wait, for each worker
_COMMAND = ("-P", "-m", "gateway.prompt.worker")  # -P: nothing is imported from the folder where the gateway was started
_START_S = 120.0  # reading the models, from a slow disk too
_STALLED = 2.0  # times the processor time that a render may take, by the clock
_TRIES = 2  # the worker may have died of what came before, or while it was idle
_MAX_ANSWER_BYTES = 1 << 28  # four times what the longest text and its ids take
_READ_BYTES = 1 << 20
_LOG_BYTES = 8192
_FIRST_MESSAGES = 2
_RETRY_AFTER_S = 1.0
_KEPT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH")  # no other variable reaches a worker: some hold keys
_ARENAS: Mapping[str, str] = {"MALLOC_ARENA_MAX": "2"}  # one for each thread would hold freed memory back


class RenderPool:
    """Workers that render for models, by name. Use as `async with`.

    A conversation is rendered by the same worker each time, which knows its earlier segments, unless that one is busy and another
    is not.
    """

    def __init__(
        self, models: Mapping[str, Spoken], *, workers: int, render_s: float, wait_s: float, environ: Mapping[str, str]
    ) -> None:
        spoken = list(dict.fromkeys(models.values()))
        kept = {**_ARENAS, **{name: environ[name] for name in _KEPT if name in environ}}
        self._places = {name: spoken.index(model) for name, model in models.items()}
        self._queue = _Queue(MAX_WAITING * workers)
        self._workers = [
            _Worker(number, self._queue, jsonio.encode(spoken).decode(), kept, render_s) for number in range(workers)
        ]
        self._wait_s = wait_s
        self._asked: set[_Work] = set()
        self._ended = False

    async def __aenter__(self) -> Self:
        """The workers start in the background: renders that come earlier wait."""
        self._running = [asyncio.create_task(worker.run()) for worker in self._workers]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended = True
        for work in self._asked:
            work.fail(_ending())
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def render(self, model: str, draft: Draft) -> Rendering:
        """As `Renderer.render`, and raises Rejected where too many wait, it waited too long, or no worker could render it."""
        answer = await self._answer(self._work(model, draft))
        match answer:
            case Made():
                ids = array("I")
                ids.frombytes(answer.ids)
                return Rendering(answer.text, tuple(ids), answer.lost_bytes, answer.marked, answer.left_out, answer.tokenize_s)
            case Refused():
                raise BadRequest(answer.message, param=answer.param)
            case TooLong():
                raise ContextTooLong(answer.least_tokens, draft.context_tokens or 0, at_least=True)

    def _work(self, model: str, draft: Draft) -> "_Work":
        try:
            frame = framed(jsonio.encode(Ask(self._places[model], draft)))
            first = jsonio.encode([model, draft.variables.get("messages", [])[:_FIRST_MESSAGES]])
        except RecursionError:
            raise BadRequest(TOO_DEEP.message, param=TOO_DEEP.param) from None
        return _Work(frame, crc32(first) % len(self._workers))

    async def _answer(self, work: "_Work") -> Answer:
        if self._ended:
            raise _ending()
        self._queue.put(work)
        self._asked.add(work)
        due = asyncio.get_running_loop().call_later(self._wait_s, self._expire, work)
        try:
            return await work.answered
        finally:
            due.cancel()
            self._queue.discard(work)
            self._asked.discard(work)

    def _expire(self, work: "_Work") -> None:
        if self._queue.discard(work):
            work.fail(_unrendered(f"No render worker was free for this prompt in {self._wait_s:g} s."))


class _Gone(Exception):
    """The worker's process has ended, or must."""


class _Spent(_Gone):
    """It has ended since a render took all its time."""


class _NotStarted(Exception):
    """There is no worker's process: it did not come to read its models."""


class _Work:
    """A render that is asked for: its frame, the number of the worker that knows its conversation, and where its answer goes,
    which nobody reads where the caller has left."""

    def __init__(self, frame: bytes, worker: int) -> None:
        self.frame = frame
        self.worker = worker
        self.losses = 0
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Answer) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)

    def fail(self, error: GatewayError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class _Queue:
    """What waits for a worker, oldest first, and the workers that wait for work, by their numbers. Each takes what is its own
    first, and then what is the others'."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[_Work] = []
        self._idle: dict[int, asyncio.Future[_Work]] = {}

    def put(self, work: _Work) -> None:
        """Raises Rejected."""
        if len(self._waiting) >= self._most:
            raise Rejected("Too many long prompts wait to be rendered.", reason="queue_full", retry_after_s=_RETRY_AFTER_S)
        if not self._handed(work):
            self._waiting.append(work)

    def lost(self, work: _Work) -> None:
        """The worker that had it is gone: the next one takes it, unless it has had its tries."""
        work.losses += 1
        if work.losses == _TRIES:
            work.fail(_unrendered("The gateway could not render this prompt; its log has the details."))
        elif not self._handed(work):
            self._waiting.insert(0, work)

    def discard(self, work: _Work) -> bool:
        """Whether it still waited."""
        waits = work in self._waiting
        if waits:
            self._waiting.remove(work)
        return waits

    async def taken(self, worker: int) -> _Work:
        """The next for this worker."""
        if self._waiting:
            work = next((each for each in self._waiting if each.worker == worker), self._waiting[0])
            self._waiting.remove(work)
            return work
        self._idle[worker] = asyncio.get_running_loop().create_future()
        return await self._idle[worker]

    def _handed(self, work: _Work) -> bool:
        """Gives it to a worker that waits, if there is one."""
        if not self._idle:
            return False
        self._idle.pop(work.worker if work.worker in self._idle else next(iter(self._idle))).set_result(work)
        return True


class _Worker:
    """One process after the other for these models (JSON), each of which renders one after the other."""

    def __init__(self, number: int, queue: _Queue, models: str, environ: Mapping[str, str], render_s: float) -> None:
        self._number = number
        self._queue = queue
        self._arguments = (models, str(render_s))
        self._environ = environ
        self._render_s = render_s
        self._decoder: jsonio.Decoder[Answer] = jsonio.Decoder(Answer)  # type: ignore[arg-type]  # a union of types

    async def run(self) -> None:
        """Until it is cancelled. The next process starts as soon as the last has ended; where that one did not even start, the
        next starts with the next render. Callers are told when it has ended."""
        while True:
            try:
                async with _process(self._arguments, self._environ) as process:
                    while True:
                        work = await self._queue.taken(self._number)
                        work.settle(await self._answer(process, work.frame))
            except _NotStarted as why:
                _log.error("a render worker did not start", why=str(why))
                self._queue.lost(await self._queue.taken(self._number))
            except _Spent as why:
                _log.warning("a render worker is started again", why=str(why))
                work.fail(Stopped(f"it takes more than {self._render_s:g} s"))
            except _Gone as why:
                _log.warning("a render worker is started again", why=str(why))
                self._queue.lost(work)

    async def _answer(self, process: "_Process", frame: bytes) -> Answer:
        """Raises _Gone."""
        most_s = self._render_s * _STALLED
        try:
            async with asyncio.timeout(most_s):
                data = await process.answer(frame)
            return self._decoder.decode(data)
        except TimeoutError:
            raise _Gone(f"it did not answer in {most_s:g} s") from None
        except jsonio.JsonError as error:
            raise _Gone(f"its answer is wrong: {error}") from None


def _ending() -> Draining:
    return Draining("The gateway is shutting down.")


def _unrendered(why: str) -> Rejected:
    return Rejected(why, reason="no_worker", retry_after_s=_RETRY_AFTER_S)


class _Process:
    """A running worker's two ends."""

    def __init__(self, child: Process) -> None:
        self._child = child
        self._asks = cast(asyncio.StreamWriter, child.stdin)
        self._answers = cast(asyncio.StreamReader, child.stdout)

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
            if await self._child.wait() == -signal.SIGPROF:
                raise _Spent("a render took all its time") from None
            raise _Gone("it has ended") from None


@contextlib.asynccontextmanager
async def _process(arguments: tuple[str, ...], environ: Mapping[str, str]) -> AsyncIterator[_Process]:
    """A worker that has read its models; it is killed on the way out. Raises _NotStarted."""
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, *_COMMAND, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_READ_BYTES, env=environ
        )
    except OSError as error:
        raise _NotStarted(error.strerror or str(error)) from None
    logging = asyncio.create_task(_logged(cast(asyncio.StreamReader, child.stderr)))
    try:
        process = _Process(child)
        try:
            async with asyncio.timeout(_START_S):
                await process.read()
        except (TimeoutError, _Gone) as error:
            raise _NotStarted(str(error) or f"it took more than {_START_S:g} s") from None
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        cast(asyncio.StreamWriter, child.stdin).close()
        await child.wait()
        await logging


async def _logged(said: asyncio.StreamReader) -> None:
    """What a worker writes on standard error."""
    while data := await said.read(_LOG_BYTES):
        _log.warning("a render worker says", text=data.decode(errors="replace"))
