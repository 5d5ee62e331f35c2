"""What is reached where: the hot paths as plain ASGI in front, everything else in FastAPI behind it.

A hot path skips FastAPI's routing, which costs half as much again a request (and its middleware as much a chunk), but is declared
in its OpenAPI document.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.base import JSON_TYPE, Dialect
from gateway.errors import (
    BodyTimeout,
    BodyTooLarge,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    ModelNotFound,
    RouteNotFound,
    UnsupportedEncoding,
)
from gateway.fleet.registry import Registry
from gateway.model import Model
from gateway.server.schemas import described, schema_of
from gateway.wire.jsonio import decode, encode

Expose = Callable[[str], Awaitable[tuple[str, bytes]]]
_TELLING = frozenset({"/health", "/ready", "/metrics"})


class HotPaths:
    """An ASGI application: the given paths first, then the fallback."""

    def __init__(self, hot: Mapping[str, ASGIApp], fallback: ASGIApp) -> None:
        self._hot = dict(hot)
        self._fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Paths match exactly, as the client sent them: nothing is normalised."""
        app = self._hot.get(scope["path"], self._fallback) if scope["type"] == "http" else self._fallback
        await app(scope, receive, send)


class Numbered:
    """An ASGI application whose answers have an id each, as those of the hot paths."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._new_id().encode())]
            await send(message)

        await self._app(scope, receive, numbered)


class Condition:
    """Whether this gateway takes requests. `draining`: it goes down, which `/ready` tells; `closed`: it takes no new ones. Each
    is set once. `troubles` gives what is wrong with what names engines, by where that is."""

    def __init__(self, troubles: Callable[[], Mapping[str, Sequence[str]]] = dict) -> None:
        self.troubles = troubles
        self.draining = False
        self.closed = False

    def close(self) -> None:
        """From now on new requests are refused."""
        self.draining = self.closed = True

    @property
    def open(self) -> bool:
        """Whether new requests are taken."""
        return not self.closed


class Closing:
    """An ASGI application that refuses new requests with `body` once the gateway is closed, but for what tells how it stands."""

    def __init__(self, app: ASGIApp, condition: Condition, body: bytes) -> None:
        self._app = app
        self._condition = condition
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves or refuses one request."""
        if self._condition.open or scope["path"] in _TELLING:
            await self._app(scope, receive, send)
            return
        await Response(self._body, 503, {"retry-after": "1"}, JSON_TYPE.decode())(scope, receive, send)


def operations(
    registry: Registry, models: tuple[Model, ...], condition: Condition, expose: Expose | None, *, to_operators: bool
) -> FastAPI:
    """`/health`, `/ready` and, where `expose` is given, `/metrics`. `to_operators`: it names engines, paths and hosts too."""
    api = FastAPI(title="Interlock", version=version("interlock"), docs_url="/docs", redoc_url=None, redirect_slashes=False)

    @api.head("/health", include_in_schema=False)
    @api.get("/health", summary="Alive: the event loop turns")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @api.head("/ready", include_in_schema=False)
    @api.get("/ready", summary="Can serve: each model is served and has a ready engine, and no drain is on")
    async def ready() -> JSONResponse:
        engines = {m.name: {e.id: e.usable for e in registry.view(m.name).engines} for m in models}
        models_fit = {name: any(each.values()) for name, each in engines.items()}
        closed = {m.name: m.closed for m in models if m.closed is not None}
        able = not condition.draining and not closed and all(models_fit.values())
        status = "draining" if condition.draining else "ready" if able else "not ready"
        problems = {
            name: {engine: registry.problem(engine) or "draining" for engine, fit in each.items() if not fit}
            for name, each in engines.items()
        }
        told = {name: those if to_operators else sorted(set(those.values())) for name, those in problems.items() if those}
        states = {"engines": engines} if to_operators else {"models": models_fit}
        body = {"status": status, **states, "problems": told, "not_served": closed}
        if troubles := condition.troubles():  # what was known before stays, so that it can serve all the same
            body["reload"] = troubles if to_operators else list(troubles)
        return JSONResponse(body, 200 if able else 503)

    if expose is not None:

        @api.get("/metrics", summary="Prometheus metrics")
        async def metrics(request: Request) -> Response:
            kind, body = await expose(request.headers.get("accept", ""))
            return Response(body, headers={"content-type": kind})

    return api


def add_models(api: FastAPI, models: Mapping[str, Model], listing: Callable[[tuple[Model, ...]], bytes]) -> None:
    """`GET /v1/models` and `GET /v1/models/{name}`; `listing` writes models in the dialect's shape."""
    served = tuple({model.name: model for model in models.values() if model.closed is None}.values())

    @api.get("/v1/models", summary="The models served here")
    async def all_models() -> Response:
        return Response(listing(served), media_type=JSON_TYPE.decode())

    @api.get("/v1/models/{name:path}", summary="One model, by its name or an alias")
    async def one_model(name: str) -> Response:
        if name not in models or models[name].closed is not None:
            raise ModelNotFound(name)
        listed = decode(listing((models[name],)))["data"][0]
        return Response(encode(listed), media_type=JSON_TYPE.decode())


def declare(api: FastAPI, dialects: Sequence[Dialect]) -> None:
    """Puts the hot paths into the OpenAPI document, which FastAPI would else not know."""
    made = api.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        for dialect in dialects:
            answers = {"200": {"description": "The answer; an event stream where `stream` is true"}}
            operation = {"summary": dialect.title, **described(schema_of(dialect.body)), "responses": answers}
            document["paths"][dialect.path] = {"post": operation}
        return document

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def answer_errors(api: FastAPI, body_of: Callable[[GatewayError], bytes]) -> None:
    """Errors of the cold routes in the dialect's shape too."""

    async def ours(_request: Request, error: Exception) -> Response:
        known = error if isinstance(error, GatewayError) else InternalError("The gateway failed on this request.")
        unread = isinstance(known, BodyTooLarge | BodyTimeout | UnsupportedEncoding)
        headers = {"connection": "close"} if unread else {}  # the rest of the body is not read
        return Response(body_of(known), known.status, headers, JSON_TYPE.decode())

    async def http(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        what = f"{request.method} {request.url.path[:80]}"
        if status == 405:
            refused = await ours(request, MethodNotAllowed(f"{what}: this path does not take this method."))
            refused.headers.update(getattr(error, "headers", None) or {})  # which method it takes
            return refused
        return await ours(request, RouteNotFound(f"{what}: there is no such path here.") if status == 404 else error)

    api.add_exception_handler(GatewayError, ours)
    api.add_exception_handler(HTTPException, http)
