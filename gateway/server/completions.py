"""The hot path: a plain ASGI application for one dialect's POST route.

Each request gets an id, ends in exactly one outcome and emits exactly one `Finished`.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from gateway.admission import Admission
from gateway.dialects.base import LONE_SURROGATES, Answer, Dialect, Encoder, Limits
from gateway.errors import (
    CLOSED,
    BodyTimeout,
    BodyTooLarge,
    ClientError,
    Draining,
    EngineRefused,
    EngineTimeout,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    ModelNotFound,
    NotServed,
    Rejected,
    UnsupportedEncoding,
    shown,
)
from gateway.events import NO_MODEL, Finished, Outcome, Received
from gateway.formats.check import answer_check
from gateway.job import Job, Ledger, Services
from gateway.model import Model
from gateway.rendering import prompt_for
from gateway.request import GenerateRequest, Prompt, Sampling
from gateway.routing.queue import Place
from gateway.server.stream import Client, ClientLeft, Header, pass_over_body, read_body
from gateway.session import serve
from gateway.trace import Begin, passed_on
from gateway.wire.jsonio import Decoder, JsonError

_log = structlog.get_logger("interlock.server")

TELL_S = 1.0
_NO_SAMPLING = Sampling()
_CLOSES: tuple[Header, ...] = ((b"connection", b"close"),)
NO_RETRY = b"x-no-retry"  # a header of clients that retry themselves: one layer only
AFFINITY = (b"x-session-affinity", b"x-session-id", b"x-claude-code-session-id")
"""Headers in which clients name the session that a request is of."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the server's settings say of every request."""

    limits: Limits
    max_body_bytes: int
    headers_grace_s: float
    route_headers: bool = False


class Completions:
    """Serves one dialect for a fixed set of models. `unix_time` stamps answers; `new_id` makes request ids, each once; `is_open`
    tells whether new requests are taken; `trace` begins the trace of each."""

    def __init__(
        self,
        dialect: Dialect,
        models: Mapping[str, Model],
        *,
        services: Services,
        admission: Admission,
        options: ServeOptions,
        unix_time: Callable[[], float],
        new_id: Callable[[], str],
        is_open: Callable[[], bool] = lambda: True,
        trace: Begin = passed_on,
    ) -> None:
        self.dialect = dialect
        self.models = models
        self.services = services
        self.admission = admission
        self.options = options
        self.unix_time = unix_time
        self.new_id = new_id
        self.is_open = is_open
        self.trace = trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, whatever happens in it."""
        await _Exchange(self, scope, receive, send).run()


class _Exchange:
    """One request's life at the server."""

    def __init__(self, app: Completions, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._arrived_s = arrived_s = self._loop.time()
        self._ledger = ledger = Ledger(app.new_id(), arrived_s)
        ledger.trace = app.trace(ledger.request_id, scope["headers"], arrived_s)
        headers: tuple[Header, ...] = ((b"x-request-id", self._ledger.request_id.encode()),)
        late = self._route_headers if app.options.route_headers else None
        self._client = Client(receive, send, headers=headers, grace_s=app.options.headers_grace_s, late=late)
        self._request: GenerateRequest | None = None
        self._model: Model | None = None
        self._prompt: Prompt | None = None
        self._rendered: tuple[float, float] | None = None
        self._session: str | None = None
        self._encoder: Encoder | None = None
        self._status = 200

    async def run(self) -> None:
        """Serves, and tells what became of it."""
        outcome: Outcome = "ok"
        reason: str | None = None
        try:
            with self._app.services.pressure.request() as stage:
                self._client.headers += _CLOSES if stage == "closing" else ()
                await self._serve()
        except ClientLeft:
            outcome, reason, self._status = "client_gone", "body", 499
        except GatewayError as error:
            outcome, reason = outcome_of(error), error.reason
            await self._fail(error)
        except asyncio.CancelledError:
            outcome, reason = self._cut()
            await self._fail(Draining("The gateway is shutting down."))
        except Exception:  # the last line of defence: a bug of ours must not leave a client without an answer
            _log.exception("request failed", request_id=self._ledger.request_id)
            outcome, reason = "upstream_error", "internal"
            await self._fail(InternalError("The gateway failed on this request; its log has the details."))
        finally:
            self._app.services.bus.emit(self._finished(outcome, reason))

    async def _serve(self) -> None:
        app = self._app
        if self._scope["method"] != "POST":
            raise MethodNotAllowed(f"{app.dialect.path} takes POST only.")
        taken = app.is_open()
        body = await read_body(self._scope, self._receive, app.options.max_body_bytes, app.services.watchdog)
        self._ledger.received_s = self._loop.time()
        app.services.bus.emit(Received(self._ledger.request_id, app.dialect.name, self._ledger.received_s))
        if not taken:
            raise Draining(CLOSED)
        try:
            request = self._request = app.dialect.parse(body, app.options.limits)
        except ClientError:
            self._model = app.models.get(_model_of(body))
            raise
        model = self._model = app.models.get(request.model)
        if model is None:
            raise ModelNotFound(request.model)
        if model.closed is not None:
            raise NotServed(f"The model {shown(model.name)} is not served: {model.closed}.")
        app.admission.check(Place(model.name))  # before it costs a rendering
        # An engine that speaks the dialect gets every field; what was mended in the body is named all the same.
        named = request.ignored if model.rendered is not None else tuple(n for n in request.ignored if n == LONE_SURROGATES)
        if named:
            self._client.headers += ((b"x-interlock-ignored", ", ".join(named).encode("ascii", "replace")),)
        async with self._client as client:
            if request.stream:
                client.expect_stream()
            prompt = self._prompt = await self._render(model, request)
            self._encoder = self._new_encoder(request, prompt.ids if prompt else ())
            check = answer_check(request.answer) if request.answer is not None else None
            headers = dict(self._scope["headers"])
            session = self._session = request.affinity or _affinity(headers)
            asked = app.services.guides.of(model.name).asked(request, prompt, session)
            may_retry = NO_RETRY not in headers
            job = Job(app.services, model, request, prompt, self._encoder, client, self._ledger, asked, check, may_retry)
            await serve(job, app.admission)

    async def _render(self, model: Model, request: GenerateRequest) -> Prompt | None:
        if model.rendered is None:
            return None
        began_s = self._loop.time()
        try:
            return await prompt_for(model, request, self._app.services.registry)
        finally:
            self._rendered = began_s, self._loop.time()

    def _new_encoder(self, request: GenerateRequest, prompt_ids: Sequence[int] = ()) -> Encoder:
        created_s = int(self._app.unix_time())
        answer = Answer(f"chatcmpl-{self._ledger.request_id}", created_s, request.model, prompt_ids=prompt_ids)
        return self._app.dialect.encoder(request, answer)

    async def _fail(self, error: GatewayError) -> None:
        """Tells the client, if it is there; one that takes nothing is not waited for long."""
        if self._client.gone:
            self._status = 499
            return
        if error.reason == "overloaded":
            await pass_over_body(self._scope, self._receive, self._app.options.max_body_bytes, TELL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                await self._tell(error)

    async def _tell(self, error: GatewayError) -> None:
        """As an HTTP error while the answer has not begun, else as an event after which nothing follows."""
        client = self._client
        if client.started:
            if self._request is not None and not client.complete:
                await client.finish((self._encoder or self._new_encoder(self._request)).error(error))
            return
        self._status = error.status
        extra: tuple[Header, ...] = ()
        if error.retry_after_s is not None:
            extra += ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))),)
        unread = isinstance(error, BodyTooLarge | BodyTimeout | UnsupportedEncoding) or error.reason == "overloaded"
        if unread and _CLOSES[0] not in client.headers:
            extra += _CLOSES  # the rest of the body is not read
        if isinstance(error, MethodNotAllowed):
            extra += ((b"allow", b"POST"),)
        await client.reply(error.status, self._app.dialect.error(error), extra)

    def _route_headers(self) -> tuple[Header, ...]:
        """How the answer is served, as far as is known when its headers go. None before an engine was asked."""
        ledger = self._ledger
        if not ledger.attempts:
            return ()
        told: tuple[Header, ...] = (
            (b"x-interlock-engine", ledger.engine.encode("ascii", "replace")),
            (b"x-interlock-attempts", b"%d" % ledger.attempts),
            (b"x-interlock-queue-ms", b"%d" % round(ledger.queue_s * 1000)),
        )
        if (cached := _cached_tokens(ledger)) is not None:
            told += ((b"x-interlock-cached-tokens", b"%d" % cached),)
        return told

    def _cut(self) -> tuple[Outcome, str]:
        """The task was cancelled: by the client's leaving, or by the server's going down."""
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        if self._client.gone:
            return "client_gone", "streaming" if self._client.started else "waiting"
        return "drained", Draining.reason

    def _finished(self, outcome: Outcome, reason: str | None) -> Finished:
        ledger, request = self._ledger, self._request
        with_tools = bool(request and request.offered)
        return Finished(
            request_id=ledger.request_id,
            dialect=self._app.dialect.name,
            model=self._model.name if self._model else NO_MODEL,
            engine=ledger.engine,
            format=self._model.format_name(with_tools) if self._model else "none",
            outcome=outcome,
            reason=reason,
            status=self._status,
            streamed=bool(request and request.stream),
            attempts=ledger.attempts,
            duration_s=self._loop.time() - ledger.received_s,
            ttft_s=ledger.ttft_s,
            first_output_s=ledger.first_output_s,
            queue_s=ledger.queue_s,
            prefill_s=ledger.prefill_s,
            decode_s=ledger.decode_s,
            client_stall_s=self._client.stall_s,
            usage=ledger.usage(),
            finish_reasons=tuple([each.finish_reason for each in ledger.tallies.values() if each.finish_reason]),
            with_tools=with_tools,
            tool_calls=sum(tally.calls for tally in ledger.tallies.values()),
            ended_thoughts=ledger.ended_thoughts(),
            retries=ledger.retries,
            resumes=ledger.resumes,
            failures=tuple(ledger.failures().items()),
            notes=self._prompt.notes if self._prompt else (),
            trace_id=ledger.trace.id,
            sampled=ledger.trace.sampled,
            arrived_s=self._arrived_s,
            rendered=self._rendered,
            tokenize_s=self._prompt.tokenize_s if self._prompt else None,
            entered_s=ledger.entered_s,
            sampling=request.sampling if request else _NO_SAMPLING,
            max_tokens=request.max_tokens if request else None,
            choices=request.n if request else 1,
            as_json=bool(request and request.answer),
            session=self._session,
        )


def _affinity(headers: Mapping[bytes, bytes]) -> str | None:
    """Whose session a request says it is of."""
    return next((headers[name].decode("latin-1") for name in AFFINITY if headers.get(name)), None)


class _Named(msgspec.Struct):
    model: str = ""


_NAMED = Decoder(_Named)


def _model_of(body: bytes) -> str:
    """The model that a body with another fault names, so that its failure is counted there; empty where it names none."""
    try:
        return _NAMED.decode(body).model
    except JsonError:
        return ""


def _cached_tokens(ledger: Ledger) -> int | None:
    """The prompt's tokens that the engine had; None before it said anything of its counts."""
    said = any(tally.usage.completion_tokens or tally.usage.cached_tokens for tally in ledger.tallies.values())
    return ledger.usage().cached_tokens if said else None


def outcome_of(error: GatewayError) -> Outcome:
    """The one word for a failed request. An engine's 4xx is the client's fault, as the engine sees it."""
    if isinstance(error, ClientError) or (isinstance(error, EngineRefused) and error.status < 500 and error.status != 429):
        return "client_error"
    if isinstance(error, Rejected | NotServed):
        return "rejected"
    if isinstance(error, EngineTimeout):
        return "timeout"
    return "drained" if isinstance(error, Draining) else "upstream_error"
