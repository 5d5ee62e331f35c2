"""One try of one request on one engine: the call goes out, chunks come in, deltas go to the client.

Invariant: an attempt emits `AttemptStarted` and is closed by exactly one event: here, in one `finally`, when it failed or the
client left; by the request's `Finished` when it served. The engine's connection is given back or closed before `run` returns.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engines.base import Chunk, Reader, Work
from gateway.answer import AnswerReader, CallChecker, PassedReader, Tally
from gateway.dialects.base import Encoder
from gateway.errors import EngineBroke, EngineUnreachable, GatewayError
from gateway.events import NO_ENGINE, AttemptFailed, AttemptStarted, ClientGone, FirstToken
from gateway.fleet.registry import Member, Registry
from gateway.formats.base import ParseOptions
from gateway.formats.check import call_check
from gateway.model import Model, Rendered
from gateway.observe.bus import Bus
from gateway.request import Delta, FailureKind, Finish, GenerateRequest, ParseFailure, Prompt, Usage
from gateway.timer import StageLimits, StageTimer, Watchdog
from gateway.upstream import Exchange, Upstream
from gateway.wire.sse import SseError, SseReader

MAX_WHOLE_BYTES = 1 << 28  # of an engine's stream whose answer is kept until it is whole
SCHEMA_MISS = "schema_mismatch"


class Sink(Protocol):
    """Where the answer goes: the client, behind its socket's backpressure."""

    @property
    def streamed(self) -> bool:
        """Whether the client wants the answer as it comes."""

    @property
    def gone(self) -> bool:
        """Whether the client has left."""

    async def write(self, data: bytes) -> float:
        """Sends a piece of a streamed answer; gives the seconds that the client made us wait."""

    async def finish(self, data: bytes) -> None:
        """Sends the last piece, or the whole body."""


@dataclass(frozen=True, slots=True)
class Services:
    """What a request needs of the process."""

    registry: Registry
    upstream: Upstream
    bus: Bus
    limits: StageLimits
    watchdog: Watchdog
    new_call_id: Callable[[], str]


@dataclass(slots=True)
class Ledger:
    """What is known of a request when it is over. Attempts write to it as they go."""

    request_id: str
    received_s: float
    engine: str = NO_ENGINE
    attempts: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None
    delivered: bool = False
    inter_token_s: list[tuple[float, int]] = field(default_factory=list)
    tallies: dict[int, Tally] = field(default_factory=dict)
    engine_usage: Usage | None = None
    _earlier: Counter[FailureKind] = field(default_factory=Counter)

    def begin(self, choice: int, tally: Tally) -> None:
        """An answer for this choice begins; the failures of one that was thrown away stay counted."""
        if choice in self.tallies:
            self._earlier += self.tallies[choice].failures
        self.tallies[choice] = tally

    def failures(self) -> Counter[FailureKind]:
        """All failures of the request's answers."""
        return sum((tally.failures for tally in self.tallies.values()), self._earlier)

    def usage(self) -> Usage:
        """The request's tokens: the engine's own count where it made all choices, else its prompt once and all choices."""
        if self.engine_usage is not None:
            return self.engine_usage
        used = [tally.final_usage() for tally in self.tallies.values()]
        return Usage(
            max((one.prompt_tokens for one in used), default=0),
            sum(one.completion_tokens for one in used),
            max((one.cached_tokens for one in used), default=0),
            sum(one.reasoning_tokens for one in used),
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready to be served. `prompt` is None where the engine templates itself."""

    services: Services
    model: Model
    request: GenerateRequest
    prompt: Prompt | None
    encoder: Encoder
    sink: Sink
    ledger: Ledger


class Course(Protocol):
    """How one attempt's chunks become bytes for the client."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete before the engine says so."""

    def take(self, chunks: Sequence[Chunk]) -> tuple[bytes, bool]:
        """The bytes that these chunks add, and whether they hold something that a reader of the answer sees."""

    def close(self) -> None:
        """The engine is done: what was kept until that was certain goes to the encoder. Raises EngineBroke without an end."""

    @property
    def schema_missed(self) -> bool:
        """Whether an answer that should fit a schema does not."""


class RenderedCourse:
    """The course of an engine that the gateway rendered for: one choice, parsed here.

    The deltas of a whole answer are kept until the attempt is over, so that one that missed its schema can be repeated.
    """

    def __init__(self, job: Job, rendered: Rendered, prompt: Prompt, choice: int) -> None:
        request = job.request
        chosen = rendered.call_format if request.tools else rendered.format
        parser = chosen.parser(
            ParseOptions(
                tools=request.tools,
                prompt_tail=prompt.tail,
                new_call_id=job.services.new_call_id,
                hold_arguments=rendered.hold_arguments or not job.sink.streamed,  # so that a call cut by the limit is its text
            )
        )
        self._reader = AnswerReader(parser, stop=request.stop, rules=job.model.rules, prompt_tokens=len(prompt.ids))
        self._encoder = job.encoder
        self._choice = choice
        self._kept: list[Delta] | None = None if job.sink.streamed else []
        job.ledger.begin(choice, self._reader.tally)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, for the engine or by a stop of ours."""
        return self._reader.ended

    @property
    def schema_missed(self) -> bool:
        """Whether a call or the answer missed its schema."""
        return self._reader.tally.schema_missed

    def take(self, chunks: Sequence[Chunk]) -> tuple[bytes, bool]:
        """Parses the chunks."""
        deltas: list[Delta] = []
        for chunk in chunks:
            deltas += self._reader.read(chunk)
        seen = any(type(delta) is not ParseFailure and type(delta) is not Finish for delta in deltas)
        if self._kept is None:
            return (self._encoder.feed(self._choice, deltas) if deltas else b""), seen
        self._kept += deltas
        return b"", seen

    def close(self) -> None:
        """A whole answer goes to its encoder now."""
        if not self._reader.ended:
            raise _endless()
        if self._kept:
            self._encoder.feed(self._choice, self._kept)


class PassedCourse:
    """The course of an engine that templates and parses itself: its events pass, all choices of them, measured and checked."""

    def __init__(self, job: Job, expected: int) -> None:
        self._job = job
        self._check = call_check(job.request.tools)
        self._expected = expected
        self._readers: dict[int, PassedReader] = {}
        self._kept: dict[int, list[Delta]] | None = None if job.sink.streamed else {}

    @property
    def ended(self) -> bool:
        """Never before the engine's own end: usage comes after the last choice."""
        return False

    @property
    def schema_missed(self) -> bool:
        """Whether a call missed its schema."""
        return any(reader.tally.schema_missed for reader in self._readers.values())

    def take(self, chunks: Sequence[Chunk]) -> tuple[bytes, bool]:
        """Measures the chunks and hands on what they say."""
        passed: list[bytes] = []
        seen = False
        for chunk in chunks:
            deltas = (self._readers.get(chunk.choice) or self._reader(chunk.choice)).read(chunk)
            if chunk.deltas:
                seen = True
            if chunk.usage is not None:
                self._job.ledger.engine_usage = chunk.usage
            if self._kept is not None:
                self._kept.setdefault(chunk.choice, []).extend(deltas)
            elif chunk.raw is not None:
                passed.append(self._job.encoder.passed(chunk.choice, chunk.raw, deltas))
        return b"".join(passed), seen

    def close(self) -> None:
        """A whole answer goes to its encoder now."""
        if sum(reader.ended for reader in self._readers.values()) < self._expected:
            raise _endless()
        for choice, deltas in (self._kept or {}).items():
            self._job.encoder.feed(choice, deltas)

    def _reader(self, choice: int) -> PassedReader:
        """The reader of a choice that is new."""
        if not 0 <= choice < self._expected:
            raise EngineBroke("The engine sent a choice that was not asked for.")
        reader = self._readers[choice] = PassedReader(CallChecker(self._check), rules=self._job.model.rules)
        self._job.ledger.begin(choice, reader.tally)
        return reader


class Attempt:
    """One try. With `may_retry`, an answer that missed its schema before anything was delivered is thrown away."""

    def __init__(self, job: Job, member: Member, choice: int, *, may_retry: bool) -> None:
        self._job = job
        self._member = member
        self._choice = choice
        self._may_retry = may_retry and job.model.rules.on_schema_miss == "retry"
        self._loop = asyncio.get_running_loop()
        self._last_token_s: float | None = None

    async def run(self) -> bool:
        """Serves the choice; False where the answer was thrown away and may be tried again. Raises a GatewayError."""
        job, member = self._job, self._member
        ledger = job.ledger
        ledger.attempts += 1
        ledger.engine = member.id
        number = ledger.attempts
        emit = job.services.bus.emit
        emit(AttemptStarted(ledger.request_id, number, member.id, member.model, self._loop.time()))
        failure: str | None = "cancelled"
        try:
            failure = None if await self._serve() else SCHEMA_MISS
        except GatewayError as error:
            failure = error.reason
            if isinstance(error, EngineUnreachable):
                job.services.registry.set_ready(member.id, False)
            raise
        finally:
            if failure is not None and job.sink.gone:
                emit(ClientGone(ledger.request_id, number, member.id))
            elif failure is not None:
                emit(AttemptFailed(ledger.request_id, number, member.id, failure))
        return failure is None

    async def _serve(self) -> bool:
        services, engine = self._job.services, self._member.engine
        work = self._work()
        call = engine.call(work)
        ends_at = self._job.ledger.received_s + services.limits.total_s
        with StageTimer(services.watchdog, services.limits, ends_at) as timer:
            timer.enter("headers")
            exchange = await services.upstream.open(
                self._member.url(call.path), call, api_key=self._member.api_key, connect_s=services.limits.connect_s
            )
            whole = False
            try:
                await self._check_head(exchange)
                timer.enter("first_token")
                reader = engine.reader(work)
                served = await self._read(exchange, reader, timer)
                whole = reader.done
            finally:
                if whole:
                    await exchange.release()
                else:
                    exchange.close()
        return served

    def _work(self) -> Work:
        job, prompt = self._job, self._job.prompt
        model = self._member.engine_model
        if prompt is None or job.model.rendered is None:
            return Work(request=job.request, model=model)
        chosen = job.model.rendered.call_format if job.request.tools else job.model.rendered.format
        return Work(
            request=job.request,
            ids=prompt.ids,
            stop_ids=prompt.stop_ids,
            visible=chosen.visible,
            constraint=prompt.constraint,
            max_tokens=prompt.max_tokens,
            model=model,
            choice=self._choice,
        )

    async def _check_head(self, exchange: Exchange) -> None:
        if exchange.status != 200:
            raise self._member.engine.error(exchange.status, await exchange.read_error())
        if not exchange.content_type.startswith("text/event-stream"):
            raise EngineBroke("The engine answered, but not with an event stream.")

    def _course(self) -> Course:
        job = self._job
        if job.prompt is None or job.model.rendered is None:
            return PassedCourse(job, job.request.n)
        return RenderedCourse(job, job.model.rendered, job.prompt, self._choice)

    async def _read(self, exchange: Exchange, reader: Reader, timer: StageTimer) -> bool:
        """Reads to the end; False where the answer missed its schema and nothing of it was delivered."""
        course = self._course()
        sse = SseReader()
        left = MAX_WHOLE_BYTES if not self._job.sink.streamed else None
        while not (reader.done or course.ended):
            data = await exchange.read()
            if not data:
                raise EngineBroke("The engine's answer ended in the middle.")
            if left is not None and (left := left - len(data)) < 0:
                raise EngineBroke(f"The engine's answer is larger than {MAX_WHOLE_BYTES} bytes.")
            chunks = _chunks(data, sse, reader)
            if not chunks:
                continue
            self._time(sum(chunk.tokens for chunk in chunks), timer)
            body, seen = course.take(chunks)
            if course.schema_missed and self._may_retry and not self._job.ledger.delivered:
                return False
            if seen and self._job.ledger.ttft_s is None:
                self._first_token()
            if body:
                await self._write(body, timer)
        course.close()
        return True

    def _time(self, tokens: int, timer: StageTimer) -> None:
        """Records the time since the last token-bearing chunk, per token."""
        if not tokens:
            return
        now = self._loop.time()
        if self._last_token_s is None:
            timer.enter("between_tokens")
        else:
            timer.touch()
            self._job.ledger.inter_token_s.append(((now - self._last_token_s) / tokens, tokens))
        self._last_token_s = now

    def _first_token(self) -> None:
        ledger, member = self._job.ledger, self._member
        ledger.ttft_s = self._loop.time() - ledger.received_s
        self._job.services.bus.emit(FirstToken(ledger.request_id, ledger.attempts, member.id, member.model, ledger.ttft_s))

    async def _write(self, body: bytes, timer: StageTimer) -> None:
        """Sends; what the client makes us wait is not the engine's time."""
        self._job.ledger.delivered = True
        timer.pause()
        stalled_s = await self._job.sink.write(body)
        timer.touch()
        if self._last_token_s is not None:
            self._last_token_s += stalled_s


def _endless() -> EngineBroke:
    return EngineBroke("The engine's answer has no finish reason: it may be cut.")


def _chunks(data: bytes, sse: SseReader, reader: Reader) -> list[Chunk]:
    """The chunks that these bytes complete."""
    try:
        events = sse.feed(data)
    except SseError as error:
        raise EngineBroke(f"The engine's answer is not a valid event stream: {error}.") from None
    return [chunk for event in events if (chunk := reader.chunk(event)) is not None]
