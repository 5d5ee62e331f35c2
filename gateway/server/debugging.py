"""What the gateway makes of a request or a text, without an engine: for those who debug a client or a model.

Bodies go in, JSON comes out; what is refused, and how that is said, is as on the chat route. Texts and ids have bounds of their
own, and what takes long is done in a thread, one body after the other: nobody else waits for it, and its memory is that of one.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.dialects.base import LONE_SURROGATES, Dialect
from gateway.dialects.checks import at_most, fit_for_header, given, invalid, unreadable
from gateway.errors import BadRequest, ModelNotFound, shown
from gateway.fleet.registry import Registry
from gateway.model import Model, Rendered
from gateway.prompt.tokenizer import Tokenizer
from gateway.rendering import HERE_BODY_BYTES, context_of, prompt_for
from gateway.request import CallAnswer, GenerateRequest, Prompt
from gateway.server.completions import ServeOptions
from gateway.wire.jsonio import Decoder, JsonError, Raw, encode, without_lone_surrogates

T = TypeVar("T")
_NULL = Raw(b"null")
_CONTEXT_TOKENS = 1 << 17  # where neither the model's files nor its engines say
_TOKEN_BYTES = 16  # of a text, for each token of the context: no text that fits has as many
_MAX_TEXT_BYTES = 4 << 20  # takes half a gigabyte while it is tokenised
_ID_BYTES = 16  # of JSON, for each id: a long one on a line of its own
_OF_MESSAGES = (
    *("tools", "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "documents"),
    *("tool_choice", "reasoning_effort"),
)


class TokenizeBody(msgspec.Struct):
    """What `/tokenize` reads itself; with `messages`, the rest is read as on the chat route."""

    model: str
    prompt: str | None = None
    messages: Raw = _NULL
    tools: Raw = _NULL
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct):
    """What `/detokenize` reads."""

    model: str
    tokens: list[int]


class _Unread(msgspec.Struct):
    """The same before its ids are read."""

    model: str
    tokens: Raw


_TOKENIZE = Decoder(TokenizeBody)
_DETOKENIZE = Decoder(DetokenizeBody)
_UNREAD = Decoder(_Unread)
_OUTLINE: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])


class Debugging:
    """The routes' handlers, for a dialect's chat requests and a fixed set of models. A body gives the answer's JSON, or a
    GatewayError."""

    def __init__(self, dialect: Dialect, models: Mapping[str, Model], registry: Registry, options: ServeOptions) -> None:
        self._dialect = dialect
        self._models = models
        self._registry = registry
        self._options = options
        self._turn = asyncio.Lock()

    async def render(self, body: bytes) -> bytes:
        """The prompt of a chat request, and what else the engine and the parser are told."""
        request = self._dialect.parse(body, self._options.limits)
        model = self._model(request.model)
        prompt = await self._prompt(model, request)
        return await self._in_turn(body, lambda: encode(_shown(model, request, prompt)))

    async def tokenize(self, body: bytes) -> bytes:
        """The ids of a text, or of the prompt that messages make. A text gets the model's BOS, messages do not, unless the
        request says otherwise."""
        said, mended = _mended(_TOKENIZE, body)
        asked = _read(_TOKENIZE, said)
        model = self._model(asked.model)
        tokenizer = _rendered(model).prompter.tokenizer
        text = asked.prompt
        if (text is None) == (asked.messages == _NULL):
            raise invalid("prompt", "give `prompt` or `messages`, one of them")
        if text is not None:
            names = _names(said)
            _refuse_beside_prompt(names)
            self._bound_text(model, text)
            ignored = [*mended, *_ignored(TokenizeBody, names)]
            return await self._in_turn(body, lambda: self._tokenized(model, asked, tokenizer.encode(text), ignored))
        request = self._dialect.parse(body, self._options.limits)
        ids = (await self._prompt(model, request)).ids
        ignored = [name for name in request.ignored if name not in TokenizeBody.__struct_fields__]
        return await self._in_turn(body, lambda: self._tokenized(model, asked, ids, ignored))

    async def detokenize(self, body: bytes) -> bytes:
        """The text of ids, special tokens written out."""
        unread = _read(_UNREAD, body)
        model = self._model(unread.model)
        tokenizer = _rendered(model).prompter.tokenizer
        most = self._context(model)
        at_most("tokens", len(bytes(unread.tokens)), _ID_BYTES * (most + 1), "bytes")
        asked = _read(_DETOKENIZE, body)
        at_most("tokens", len(asked.tokens), most, "ids, which is the context's length")
        ignored = list(_ignored(DetokenizeBody, _names(body)))
        told = {"ignored": ignored} if ignored else {}
        return await self._in_turn(body, lambda: encode({"prompt": _text(tokenizer, asked.tokens), **told}))

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

    def _context(self, model: Model) -> int:
        return context_of(model, self._registry) or _CONTEXT_TOKENS

    def _bound_text(self, model: Model, text: str) -> None:
        most = min(_TOKEN_BYTES * self._context(model), _MAX_TEXT_BYTES)
        at_most("prompt", len(text.encode()), most, "bytes, which are more than the context holds")

    async def _in_turn(self, body: bytes, work: Callable[[], T]) -> T:
        """What long bodies need is done in a thread, of one after the other."""
        if len(body) < HERE_BODY_BYTES:
            return work()
        async with self._turn:
            return await asyncio.to_thread(work)

    def _tokenized(self, model: Model, asked: TokenizeBody, ids: Sequence[int], ignored: Sequence[str]) -> bytes:
        prompter = _rendered(model).prompter
        with_bos = asked.prompt is not None if asked.add_special_tokens is None else asked.add_special_tokens
        if with_bos and prompter.bos_id is not None:
            ids = (prompter.bos_id, *ids)
        told: dict[str, Any] = {"count": len(ids), "max_model_len": context_of(model, self._registry), "tokens": ids}
        if ignored:
            told["ignored"] = ignored
        if asked.return_token_strs:
            told["token_strs"] = _spellings(prompter.tokenizer, ids)
        return encode(told)


def _read(decoder: Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except JsonError as error:
        raise unreadable(error) from None


def _names(body: bytes) -> list[str]:
    fields = _read(_OUTLINE, body)
    return given(fields)


def _mended(decoder: Decoder[T], body: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The body with U+FFFD for halves of characters, as on the chat route, and the name for that where there were any."""
    try:
        decoder.decode(body)
    except JsonError:
        mended = without_lone_surrogates(body)
        return mended, (() if mended == body else (LONE_SURROGATES,))
    return body, ()


def _ignored(shape: type[msgspec.Struct], names: Sequence[str]) -> Iterator[str]:
    """The names of the fields that nothing reads."""
    return iter(fit_for_header(name for name in names if name not in shape.__struct_fields__))


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


def _refuse_beside_prompt(names: Sequence[str]) -> None:
    for name in names:
        if name in _OF_MESSAGES:
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
