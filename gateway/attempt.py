"""One try of one request on one engine: the call goes out, chunks come in, deltas go to the client.

Invariant: an attempt emits `AttemptStarted` and is closed by exactly one event: here, in one `finally`, when it failed or the
client left; by the request's `Finished` when it served. The engine's connection is given back or closed before `run` returns.
"""

import asyncio

from engines.base import Reader, Work
from gateway.course import Course, course_of
from gateway.errors import EngineBroke, EngineGone, EngineRefused, EngineUnreachable, GatewayError
from gateway.events import AttemptFailed, AttemptStarted, ClientGone, FirstToken
from gateway.fleet.registry import Member
from gateway.job import Job
from gateway.reading import work_for
from gateway.timer import StageTimer
from gateway.upstream import Exchange
from gateway.wire.sse import SseError, SseEvent, SseReader

MAX_WHOLE_BYTES = 1 << 28  # of an engine's stream whose answer is kept until it is whole
SCHEMA_MISS = "schema_mismatch"


class Attempt:
    """Try number `number` of one choice. With `may_retry`, an answer that missed its schema before anything was delivered is
    thrown away, where another may differ: each try has a seed of its own, but greedy ones are all the same."""

    def __init__(self, job: Job, member: Member, choice: int, *, number: int, may_retry: bool) -> None:
        self._job = job
        self._member = member
        self._choice = choice
        self._number = number
        sampled = job.request.sampling.temperature != 0
        self._may_retry = may_retry and sampled and job.model.rules.on_schema_miss == "retry"
        self._loop = asyncio.get_running_loop()
        self._first_s: float | None = None
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
        failure: str | None = "internal"
        try:
            failure = None if await self._serve() else SCHEMA_MISS
        except GatewayError as error:
            failure = error.reason
            if isinstance(error, EngineUnreachable | EngineGone):
                job.services.registry.lost(member.id)
            raise
        except asyncio.CancelledError:
            failure = "cancelled"
            raise
        finally:
            if failure is not None and job.sink.gone:
                emit(ClientGone(ledger.request_id, number, member.id))
            elif failure is not None:
                emit(AttemptFailed(ledger.request_id, number, member.id, failure))
        return failure is None

    async def _serve(self) -> bool:
        services = self._job.services
        course = course_of(self._job, self._choice, self._member.engine.traits)
        work = self._work()
        rest: Work | None = work
        ends_at = self._job.ledger.received_s + services.limits.total_s
        with StageTimer(services.watchdog, services.limits, ends_at) as timer:
            if course.must_go_on:  # the template has opened a thought that may have no token
                rest = course.resumed(work)
            while rest is not None:
                if not await self._call(rest, course, timer):
                    return False
                rest = course.resumed(work) if course.must_go_on else None
            await self._write(course, timer)
            course.close()
            self._first_token()
        return True

    async def _call(self, work: Work, course: Course, timer: StageTimer) -> bool:
        """One call of the engine; False where the answer missed its schema and nothing of it was delivered."""
        services, engine = self._job.services, self._member.engine
        call = engine.call(work)
        timer.enter("headers")
        exchange = await services.upstream.open(
            self._member.url(call.path), call, api_key=self._member.api_key, connect_s=services.limits.connect_s
        )
        whole = False
        try:
            await self._check_head(exchange)
            timer.enter("first_token")
            reader = engine.reader(work)
            served = await self._read(exchange, reader, course, timer)
            whole = reader.done
        except GatewayError as error:
            raise error.without(self._member.api_key) from None
        finally:
            if whole:
                exchange.release()
            else:
                exchange.close()
        return served

    def _work(self) -> Work:
        job, prompt = self._job, self._job.prompt
        model = self._member.engine_model
        if prompt is None or job.model.rendered is None:
            return Work(request=job.request, model=model)
        choice = self._choice + self._number * job.request.n
        return work_for(job.model.rendered, job.request, prompt, model=model, choice=choice)

    async def _check_head(self, exchange: Exchange) -> None:
        if exchange.status != 200:
            error = self._member.engine.error(exchange.status, await exchange.read_error())
            if isinstance(error, EngineRefused):
                error.wait_s = exchange.retry_after_s
            raise error
        if not exchange.content_type.startswith("text/event-stream"):
            raise EngineBroke("The engine answered, but not with an event stream.")

    async def _read(self, exchange: Exchange, reader: Reader, course: Course, timer: StageTimer) -> bool:
        """Reads to the call's end; False as `_call`."""
        sse = SseReader()
        left = MAX_WHOLE_BYTES if not self._job.sink.streamed else None
        while not (reader.done or course.ended or course.must_go_on):
            data = await exchange.read()
            if not data:
                if (last := reader.ended()) is None:
                    raise EngineGone("The engine's answer ended in the middle.")
                course.take([last])
                break
            if left is not None and (left := left - len(data)) < 0:
                raise EngineBroke(f"The engine's answer is larger than {MAX_WHOLE_BYTES} bytes.")
            chunks = [chunk for event in _events(data, sse) if (chunk := reader.chunk(event)) is not None]
            if not chunks:
                continue
            self._time(sum(chunk.tokens for chunk in chunks), timer)
            if course.take(chunks) and self._first_s is None:
                self._first_s = self._loop.time()
            if course.schema_missed and self._may_retry and not self._job.ledger.delivered:
                return False
            await self._write(course, timer)
        return True

    def _time(self, tokens: int, timer: StageTimer) -> None:
        """Records the time since the last token-bearing chunk, per token."""
        if not tokens:
            return
        now = self._loop.time()
        timer.enter("between_tokens")
        if self._last_token_s is not None:
            self._job.ledger.inter_token_s.append(((now - self._last_token_s) / tokens, tokens))
        self._last_token_s = now

    def _first_token(self) -> None:
        """Tells, once a request, when its first token came; only of an attempt that serves, since others gave the client none."""
        ledger, member = self._job.ledger, self._member
        if ledger.ttft_s is None and self._first_s is not None:
            ledger.ttft_s = self._first_s - ledger.received_s
            event = FirstToken(ledger.request_id, ledger.attempts, member.id, member.model, ledger.ttft_s)
            self._job.services.bus.emit(event)

    async def _write(self, course: Course, timer: StageTimer) -> None:
        """Sends what was read since; what the client makes us wait is not the engine's time."""
        body = course.written()
        if not body:
            return
        self._first_token()
        self._job.ledger.delivered = True
        timer.pause()
        stalled_s = await self._job.sink.write(body)
        timer.touch()
        if self._last_token_s is not None:
            self._last_token_s += stalled_s


def _events(data: bytes, sse: SseReader) -> list[SseEvent]:
    """The events that these bytes complete."""
    try:
        return sse.feed(data)
    except SseError as error:
        raise EngineBroke(f"The engine's answer is not a valid event stream: {error}.") from None
