"""Where those who debug reach what `gateway.server.debugging` tells.

`/v1/chat/completions/render` gives the prompt that the chat route would send; `/tokenize` and `/detokenize` speak as vLLM's do.
They are cold routes: nothing is generated, so that they have no place in the metrics or the access log.
"""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.dialects.base import JSON_TYPE, Dialect
from gateway.server.debugging import Debugging, DetokenizeBody, TokenizeBody
from gateway.server.schemas import described, schema_of
from gateway.server.stream import ClientLeft, read_body
from gateway.timer import Watchdog

_CLIENT_LEFT = 499


def add_debugging(api: FastAPI, debugging: Debugging, dialect: Dialect, max_body_bytes: int, watchdog: Watchdog) -> None:
    """The three routes, and their place in the OpenAPI document. `dialect` is that of the chat route."""
    chat, tokenized = schema_of(dialect.body), schema_of(TokenizeBody)
    tokenized["properties"] |= {name: chat["properties"][name] for name in ("messages", "tools")}

    async def answer(request: Request, handler: Callable[[bytes], Awaitable[bytes]]) -> Response:
        try:
            body = await read_body(request.scope, request.receive, max_body_bytes, watchdog)
        except ClientLeft:
            return Response(status_code=_CLIENT_LEFT)
        return Response(await handler(body), media_type=JSON_TYPE.decode())

    @api.post(f"{dialect.path}/render", summary="The prompt that a chat request makes", openapi_extra=described(chat))
    async def render(request: Request) -> Response:
        return await answer(request, debugging.render)

    @api.post("/tokenize", summary="The token ids of `prompt`, or of `messages`", openapi_extra=described(tokenized))
    async def tokenize(request: Request) -> Response:
        return await answer(request, debugging.tokenize)

    @api.post("/detokenize", summary="The text of token ids", openapi_extra=described(schema_of(DetokenizeBody)))
    async def detokenize(request: Request) -> Response:
        return await answer(request, debugging.detokenize)
