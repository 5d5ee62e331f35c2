"""What the gateway makes of a request or a text, without an engine: for those who debug a client or a model.

`/v1/chat/completions/render` gives the prompt that the chat route would send; `/tokenize` and `/detokenize` speak as vLLM's do.
They are cold routes: nothing is generated, so that they have no place in the metrics or the access log. What they refuse, and
how they say so, is as on the chat route.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.dialects.base import JSON_TYPE, Dialect
from gateway.dialects.checks import fit_for_header, given, invalid, unreadable
from gateway.errors import BadRequest, ModelNotFound, shown
from gateway.fleet.registry import Registry
from gateway.model import Model, Rendered
from gateway.prompt.tokenizer import Tokenizer
from gateway.rendering import THREAD_BODY_BYTES, context_of, prompt_for
from gateway.request import CallAnswer, GenerateRequest, Prompt
from gateway.server.completions import ServeOptions
from gateway.server.schemas import described, schema_of
from gateway.server.stream import ClientLeft, read_body
from gateway.timer import Watchdog
from gateway.wire.jsonio import Decoder, JsonError, Raw, encode

T = TypeVar("T")
_NULL = Raw(b"null")
_CLIENT_LEFT = 499


class _Tokenize(msgspec.Struct):
    model: str
    prompt: str | None = None
    messages: Raw = _NULL
    tools: Raw = _NULL
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class _Detokenize(msgspec.Struct):
    model: str
    tokens: list[int]


_TOKENIZE = Decoder(_Tokenize)
_DETOKENIZE = Decoder(_Detokenize)
_OUTLINE: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])


class Debugging:
    """The routes' handlers, for a dialect's chat requests and a fixed set of models. A body gives the answer's JSON, or a
    ClientError."""

    def __init__(
        self, dialect: Dialect, models: Mapping[str, Model], registry: Registry, options: ServeOptions, watchdog: Watchdog
    ) -> None:
        self._dialect = dialect
        self._models = models
        self._registry = registry
        self._options = options
        self._watchdog = watchdog

    @property
    def dialect(self) -> Dialect:
        """The one of the chat route."""
        return self._dialect

    async def answer(self, request: Request, handler: Callable[[bytes], Awaitable[bytes]]) -> Response:
        """Reads the body within the server's limits, and answers with what the handler makes of it."""
        try:
            body = await read_body(request.scope, request.receive, self._options.max_body_bytes, self._watchdog)
        except ClientLeft:
            return Response(status_code=_CLIENT_LEFT)
        return Response(await handler(body), media_type=JSON_TYPE.decode())

    async def render(self, body: bytes) -> bytes:
        """The prompt of a chat request, and what else the engine and the parser are told."""
        request = self._dialect.parse(body, self._options.limits)
        model = self._model(request.model)
        prompt = await self._prompt(model, request)
        return await _off_loop(body, lambda: encode(_shown(model, request, prompt)))

    async def tokenize(self, body: bytes) -> bytes:
        """The ids of a text, or of the prompt that messages make. A text gets the model's BOS, messages do not, unless the
        request says otherwise."""
        asked = _read(_TOKENIZE, body)
        model = self._model(asked.model)
        prompter = _rendered(model).prompter
        text = asked.prompt
        if (text is None) == (asked.messages == _NULL):
            raise invalid("prompt", "give `prompt` or `messages`, one of them")
        if text is None:
            request = self._dialect.parse(body, self._options.limits)
            ids = (await self._prompt(model, request)).ids
            ignored = [name for name in request.ignored if name not in _Tokenize.__struct_fields__]
        else:
            _refuse_beside_prompt(asked)
            ids = await _off_loop(body, lambda: prompter.tokenizer.encode(text))
            ignored = _unread(_Tokenize, body)
        with_bos = text is not None if asked.add_special_tokens is None else asked.add_special_tokens
        if with_bos and prompter.bos_id is not None:
            ids = (prompter.bos_id, *ids)
        told: dict[str, Any] = {"count": len(ids), "max_model_len": context_of(model, self._registry), "tokens": ids}
        if ignored:
            told["ignored"] = ignored
        if not asked.return_token_strs:
            return await _off_loop(body, lambda: encode(told))
        return await _off_loop(body, lambda: encode({**told, "token_strs": _spellings(prompter.tokenizer, ids)}))

    async def detokenize(self, body: bytes) -> bytes:
        """The text of ids, special tokens written out."""
        asked = _read(_DETOKENIZE, body)
        tokenizer = _rendered(self._model(asked.model)).prompter.tokenizer
        told = {"ignored": ignored} if (ignored := _unread(_Detokenize, body)) else {}
        return await _off_loop(body, lambda: encode({"prompt": _text(tokenizer, asked.tokens), **told}))

    def _model(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(name)
        return model

    async def _prompt(self, model: Model, request: GenerateRequest) -> Prompt:
        prompt = await prompt_for(model, request, self._registry)
        if prompt is None:
            raise _not_rendered(model)
        return prompt


def add_debugging(api: FastAPI, debugging: Debugging) -> None:
    """The three routes, and their place in the OpenAPI document."""
    path, chat = f"{debugging.dialect.path}/render", schema_of(debugging.dialect.body)
    tokenized = schema_of(_Tokenize)
    tokenized["properties"] |= {name: chat["properties"][name] for name in ("messages", "tools")}

    @api.post(path, summary="The prompt that a chat request makes", openapi_extra=described(chat))
    async def render(request: Request) -> Response:
        return await debugging.answer(request, debugging.render)

    @api.post("/tokenize", summary="The token ids of `prompt`, or of `messages`", openapi_extra=described(tokenized))
    async def tokenize(request: Request) -> Response:
        return await debugging.answer(request, debugging.tokenize)

    @api.post("/detokenize", summary="The text of token ids", openapi_extra=described(schema_of(_Detokenize)))
    async def detokenize(request: Request) -> Response:
        return await debugging.answer(request, debugging.detokenize)


def _read(decoder: Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except JsonError as error:
        raise unreadable(error) from None


def _unread(shape: type[msgspec.Struct], body: bytes) -> list[str]:
    """The names of the fields that nothing reads."""
    used = frozenset(shape.__struct_fields__)
    return list(fit_for_header(name for name in given(_OUTLINE.decode(body)) if name not in used))


async def _off_loop(body: bytes, work: Callable[[], T]) -> T:
    """What long bodies need is done in a thread."""
    return work() if len(body) < THREAD_BODY_BYTES else await asyncio.to_thread(work)


def _rendered(model: Model) -> Rendered:
    if model.rendered is None:
        raise _not_rendered(model)
    return model.rendered


def _not_rendered(model: Model) -> BadRequest:
    return BadRequest(
        f"The engines of {shown(model.name)} template and tokenise by themselves (`format: engine`): the gateway has neither "
        "their template nor their vocabulary.",
        param="model",
    )


def _refuse_beside_prompt(asked: _Tokenize) -> None:
    for name, said in (("tools", asked.tools != _NULL), ("add_generation_prompt", asked.add_generation_prompt is not None)):
        if said:
            raise invalid(name, "it goes with `messages`, not with `prompt`")


def _shown(model: Model, request: GenerateRequest, prompt: Prompt) -> Mapping[str, Any]:
    kind = "calls" if isinstance(prompt.constraint, CallAnswer) else "json"
    return {
        "text": prompt.text,
        "ids": prompt.ids,
        "stop_ids": sorted(prompt.stop_ids),
        "stop_strings": request.stop,
        "format": model.format_name(bool(request.offered)),
        "max_tokens": prompt.max_tokens,
        "constraint": kind if prompt.constraint is not None else None,
        "notes": prompt.notes,
        "ignored": request.ignored,
    }


def _spellings(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as the vocabulary spells it: a space may be `Ġ` or `▁` there, a byte a character of its own."""
    return [tokenizer.backend.id_to_token(token_id) or "" for token_id in ids]


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    detokenizer, size = tokenizer.detokenizer(), tokenizer.vocab_size
    pieces = []
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < size:
            raise invalid(f"tokens[{index}]", f"the vocabulary's ids are 0 to {size - 1}, got {token_id}")
        pieces.append(detokenizer.add(token_id))
    return "".join(pieces) + detokenizer.finish()
