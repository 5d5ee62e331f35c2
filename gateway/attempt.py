"""One try of one request on one engine: the call goes out, chunks come in, deltas go to the client.

Invariant: an attempt emits `AttemptStarted` and is closed by exactly one event: here, in one `finally`, when it failed, the
client left or it served one of several answers; by the request's `Finished` when it served the only one. The engine's connection
is given back or closed before `run` returns.
"""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from engines.base import Chunk, Reader, Work
from gateway.course import Course
from gateway.errors import BadRequest, EngineBroke, EngineGone, EngineRefused, GatewayError
from gateway.events import (
    AttemptFailed,
    AttemptServed,
    AttemptStarted,
    CacheTold,
    ClientGone,
    FirstToken,
    Generated,
    Prefilled,
)
from gateway.fleet.registry import Member
from gateway.fleet.visit import Visit
from gateway.made import Made
from gateway.progress import Progress
from gateway.routing.policy import Decision
from gateway.routing.retry import failure_of
from gateway.timer import StageTimer
from gateway.trace import Take
from gateway.upstream import Exchange
from gateway.wire.sse import SseError, SseEvent, SseReader

MAX_WHOLE_BYTES = 1 << 28  # of an engine's stream whose answer is kept until it is whole
MAX_JSON_BYTES = 1 << 24  # of an answer that an engine gives as one, not as a stream
STREAM, JSON = "text/event-stream", "application/json"
SCHEMA_MISS = "schema_miss"
HEARD_EACH_S = 0.5
END_S = 0.3  # for the end mark and the usage, once the answer said why it ended


class Attempt:
    """The next try of an answer, on this engine, for what `decision` says."""

    def __init__(self, progress: Progress, member: Member, decision: Decision) -> None:
        self.progress = progress
        self.member = member
        self.number = 0
        self._decision = decision
        self._job = progress.job
        self._visit: Visit | None = None
        self._timer: StageTimer | None = None
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._heard_s = 0.0
        self._prefilling = True
        self._prefilled_s = 0.0
        self._stalled_s = 0.0
        self._first_s: float | None = None  # when its first token came, and its last: later by what the client held up since
        self._last_s = 0.0
        self._gaps: list[tuple[float, int]] = []
        self._gave: tuple[float | None, float | None] = (None, None)  # the request's first token, and its first output
        self._parse: Take = progress.course.take

    @property
    def resumed(self) -> bool:
        """Whether it goes on with what another engine began."""
        return self._decision.why == "resume"

    def age_s(self) -> float:
        """Seconds since it began."""
        return self._loop.time() - self._began_s

    async def run(self) -> bool:
        """Serves the choice; False where the answer was thrown away and may be tried again. Raises a GatewayError."""
        job, member = self._job, self.member
        ledger, emit = job.ledger, job.services.bus.emit
        ledger.attempts += 1
        ledger.engine = member.id
        self.number = number = ledger.attempts
        decision = self._decision
        visit = self._visit = job.services.registry.visit(member.id, self._give_up)
        retry, why = bool(self.progress.tries.failed), decision.why
        began_s, considered = self._began_s, decision.considered
        forecast = self.progress.route.forecast
        about = (ledger.request_id, number, member.id, member.model)
        emit(AttemptStarted(*about, began_s, why, considered, retry, forecast, self.progress.choice))
        self._parse = ledger.trace.timed(number, self._parse)
        failure: str | None = "internal"
        try:
            failure = None if await self._serve() else SCHEMA_MISS
            visit.served()
        except GatewayError as error:
            failure = failure_of(error)
            visit.failed(error)
            raise
        except asyncio.CancelledError:
            failure = "cancelled"
            raise
        finally:
            visit.over()
            if failure != "cancelled" or ledger.engine == member.id:
                self._worked()
            self._release(served=failure is None)
            if failure is not None and job.sink.gone:
                emit(ClientGone(ledger.request_id, number, member.id))
            elif failure is not None:
                emit(AttemptFailed(ledger.request_id, number, member.id, failure, member.model))
            elif job.request.n > 1:
                emit(AttemptServed(ledger.request_id, number, member.id, member.model))
        return failure is None

    def _prefilled(self, now_s: float) -> None:
        """The first token of all: what the engine does for it is done."""
        self._prefilling = False
        self._prefilled_s = now_s - self._began_s
        route, ledger, member = self.progress.route, self._job.ledger, self.member
        route.prefilled()
        about = (ledger.request_id, self.number, member.id, member.model)
        self._job.services.bus.emit(Prefilled(*about, self._prefilled_s, route.forecast))

    def _worked(self) -> None:
        """Where the time of the attempt went."""
        age_s = self.age_s()
        prefill_s = age_s if self._prefilling else self._prefilled_s
        self._job.ledger.worked(self.member.id, prefill_s, max(age_s - prefill_s - self._stalled_s, 0.0))

    def _generated(self, cached: int | None, *, served: bool) -> None:
        """Tells what the engine made."""
        progress, job, member = self.progress, self._job, self.member
        whole = progress.course.made
        made, progress.made = whole if not self.resumed else whole.since(progress.made), whole
        if self._prefilling and not (served or made.failures):
            return
        prompt_tokens = made.usage.prompt_tokens if not self._prefilling or served else 0
        ttft_s, first_output_s = self._gave
        trace = job.ledger.trace
        told = Generated(
            job.ledger.request_id,
            self.number,
            member.id,
            member.model,
            job.model.format_name(bool(job.request.offered)),
            made,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached,
            finish_reasons=made.finish_reasons if served else (),
            inter_token_s=self._gaps,
            per_token_s=self._per_token_s(made) if served else None,
            ttft_s=ttft_s,
            first_output_s=first_output_s,
            recorded=trace.id if trace.sampled else None,
        )
        job.services.bus.emit(told)

    def _per_token_s(self, made: Made) -> float | None:
        """Seconds of each of the answer's tokens but the first; None where it has no second. Several answers that came at once
        have as many tokens each."""
        tokens = made.usage.completion_tokens / self.progress.course.choices
        return None if self._first_s is None or tokens <= 1 else (self._last_s - self._first_s) / (tokens - 1)

    def _release(self, *, served: bool) -> None:
        """Tells what the engine made, and its router what it had in its cache; nothing stays charged to it. What an engine says
        of the prompt of an answer that another began is of other tokens."""
        course, route, forecast = self.progress.course, self.progress.route, self.progress.route.forecast
        usage, tells = course.usage, served and self.member.engine.traits.tells_cached
        cached = None if self.resumed else usage.cached_tokens if tells else usage.cached_tokens or None
        self._generated(cached, served=served)
        if served and not self.resumed and forecast is not None:
            ledger, member = self._job.ledger, self.member
            route.served(usage.prompt_tokens, usage.completion_tokens, cached, course.answer_ids)
            about = (ledger.request_id, self.number, member.id, member.model)
            self._job.services.bus.emit(CacheTold(*about, cached, forecast))
        route.close()

    def _give_up(self, silent_s: float) -> None:
        """Probes found the engine gone. An answer that has waited so long for its first token goes to another, where one can take
        it; else it may still come, as an engine that is busy with a long prompt may answer no probe."""
        if self._timer is None or self._timer.waits_s < silent_s:
            return
        ledger, total_s = self._job.ledger, self._job.services.limits.total_s
        if self.progress.movable(self.member.id, ledger.received_s + total_s - self._loop.time()):
            self._timer.give_up()

    async def _serve(self) -> bool:
        services, progress = self._job.services, self.progress
        course = progress.course
        rest = None if course.ended else progress.work
        ends_at = self._job.ledger.received_s + services.limits.total_s
        with StageTimer(services.watchdog, services.limits, ends_at) as timer:
            self._timer = timer
            if course.must_go_on:  # the template has opened a thought that may have no token
                rest = course.continued(progress.whole)
            while rest is not None:
                progress.work = rest
                if not await self._call(rest, course, timer):
                    return False
                rest = course.continued(progress.whole) if course.must_go_on else None
            await self._write(course, timer)
            course.close()
            self._first_token()
        return True

    async def _call(self, work: Work, course: Course, timer: StageTimer) -> bool:
        """One call of the engine; False where the answer missed its schema and nothing of it was delivered."""
        services, member = self._job.services, self.member
        work = replace(work, model=member.engine_model, rank=member.rank)
        try:
            call = member.engine.call(work)
        except BadRequest:
            self.progress.tries.unable.add(member.engine.kind)  # another kind may have what this one lacks
            raise
        if told := self._job.ledger.trace.headers(self.number):
            call = replace(call, headers={**call.headers, **told})
        timer.enter("headers")
        exchange = await services.upstream.open(
            member.url(call.path), call, api_key=member.api_key, connect_s=services.limits.connect_s
        )
        whole = False
        try:
            await self._check_head(exchange)
            timer.enter("first_token")
            reader = member.engine.reader(work)
            served = await self._read(exchange, reader, course, timer)
            whole = reader.done
        except GatewayError as error:
            whole = exchange.status != 200  # all was read that it says
            raise error.without(member.api_key) from None
        finally:
            if whole:
                exchange.release()
            else:
                exchange.close()
        return served

    async def _check_head(self, exchange: Exchange) -> None:
        if exchange.status != 200:
            error = self.member.engine.error(exchange.status, await exchange.read_error())
            if isinstance(error, EngineRefused):
                error.wait_s = exchange.retry_after_s
            raise error
        if exchange.content_type not in (STREAM, JSON):
            raise EngineBroke("The engine answered, but not with an event stream.")

    async def _read(self, exchange: Exchange, reader: Reader, course: Course, timer: StageTimer) -> bool:
        """Reads to the call's end; False as `_call`."""
        if exchange.content_type == JSON:
            self._take(await _whole(exchange, reader), course, timer)
            if self._missed(course):
                return False
            await self._write(course, timer)
            return True
        sse = SseReader()
        left = MAX_WHOLE_BYTES if not self._job.sink.streamed else None
        while not (reader.done or course.ended or course.must_go_on):
            data = await _bytes(exchange, END_S if reader.ended() is not None else None)
            if left is not None and (left := left - len(data)) < 0:
                raise EngineBroke(f"The engine's answer is larger than {MAX_WHOLE_BYTES} bytes.")
            chunks, failure = _chunks(data, exchange, sse, reader)
            if chunks:
                self._take(chunks, course, timer)
                if self._missed(course):
                    return False
            if failure is not None:
                self._broken_off(failure, reader, course)
                break
            await self._write(course, timer)
        return True

    def _take(self, chunks: Sequence[Chunk], course: Course, timer: StageTimer) -> None:
        self._time(sum(chunk.tokens for chunk in chunks), timer, known=course.repeats)
        progress = self.progress
        if self._parse(chunks) and progress.first_output_s is None:
            now_s = self._loop.time()
            progress.first_s = progress.first_s or now_s
            progress.first_output_s = now_s if course.output else None

    def _missed(self, course: Course) -> bool:
        return course.schema_missed and self.progress.may_miss and not self.progress.delivered

    def _broken_off(self, failure: GatewayError, reader: Reader, course: Course) -> None:
        """Raises the failure of an engine, but where the answer is complete all the same. What was read before it is kept."""
        if course.ended or course.must_go_on:
            return
        if (last := reader.ended()) is None:
            raise failure
        course.take([last])

    def _time(self, tokens: int, timer: StageTimer, *, known: bool) -> None:
        """Records the time since the last token-bearing chunk, per token; not of tokens that the client has already."""
        if not tokens:
            return
        now = self._loop.time()
        timer.enter("between_tokens")
        if self._prefilling:
            self._prefilled(now)
        if now - self._heard_s >= HEARD_EACH_S:
            self._heard_s = now
            if self._visit is not None:
                self._visit.heard()
            self.progress.give_back()
        if known:
            return
        if self._first_s is not None:
            self._gaps.append(((now - self._last_s) / tokens, tokens))
        else:
            self._first_s = now
        self._last_s = now

    def _first_token(self) -> None:
        """Tells, once a request, when its first token came; only of an attempt that serves, since others gave the client none."""
        ledger, member, first_s = self._job.ledger, self.member, self.progress.first_s
        if ledger.ttft_s is None and first_s is not None:
            ledger.ttft_s = first_s - ledger.received_s
            self._gave = (ledger.ttft_s, None)
            event = FirstToken(ledger.request_id, self.number, member.id, member.model, ledger.ttft_s)
            self._job.services.bus.emit(event)
        if ledger.first_output_s is None and self.progress.first_output_s is not None:
            ledger.first_output_s = self.progress.first_output_s - ledger.received_s
            self._gave = (self._gave[0], ledger.first_output_s)

    async def _write(self, course: Course, timer: StageTimer) -> None:
        """Sends what was read since; what the client makes us wait is not the engine's time."""
        body = course.written()
        if not body:
            return
        self._first_token()
        self.progress.delivered = True
        timer.pause()
        stalled_s = await self._job.sink.write(body)
        timer.touch()
        if stalled_s:
            self._stalled_s += stalled_s
            self._stalled(stalled_s)

    def _stalled(self, for_s: float) -> None:
        """The client made the engine wait: that is no time between its tokens."""
        if self._first_s is not None:
            self._first_s += for_s
            self._last_s += for_s


async def _bytes(exchange: Exchange, within_s: float | None) -> bytes:
    """The next bytes; b"" at the end, good or bad, or when none came in time: what was read tells whether the answer is
    complete."""
    try:
        if within_s is None:
            return await exchange.read()
        async with asyncio.timeout(within_s):
            return await exchange.read()
    except (EngineGone, TimeoutError):
        return b""


async def _whole(exchange: Exchange, reader: Reader) -> Sequence[Chunk]:
    """The answer of an engine that gives it as one, though it was asked for a stream."""
    body = await exchange.read_up_to(MAX_JSON_BYTES + 1)
    if len(body) > MAX_JSON_BYTES:
        raise EngineBroke(f"The engine's answer is larger than {MAX_JSON_BYTES} bytes.")
    return reader.whole(body)


def _chunks(data: bytes, exchange: Exchange, sse: SseReader, reader: Reader) -> tuple[list[Chunk], GatewayError | None]:
    """What these bytes say, to the answer's end, and the failure that follows it, if one does: what came before it counts."""
    if not data:
        return [], EngineGone("The engine's answer ended in the middle.")
    chunks: list[Chunk] = []
    try:
        events = iter(_events(data, sse))
        for event in events:
            if (chunk := reader.chunk(event)) is not None:
                chunks.append(chunk)
            if reader.done:
                exchange.overrun = not sse.idle or next(events, None) is not None
                break
    except GatewayError as error:
        return chunks, error
    return chunks, None


def _events(data: bytes, sse: SseReader) -> list[SseEvent]:
    """The events that these bytes complete."""
    try:
        return sse.feed(data)
    except SseError as error:
        raise EngineBroke(f"The engine's answer is not a valid event stream: {error}.") from None
