"""Any engine with OpenAI's `/v1/chat/completions` that templates and parses by itself (`format: engine`).

The client's own body goes out with three fields set; each event comes back as it is, beside what it says, which is for measuring
and checking. The reader is on the path of every token: one typed decode, and nothing kept but which calls are open. The tokens
that a client asks for are read only for whole answers, since those of a stream pass with its events.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from engines.base import MAX_COUNT, Call, Chunk, EngineInfo, EngineLoad, Traits, Work
from engines.events import finish, mended, read
from engines.refusal import ErrorObject, failure_in_stream, refusal
from gateway.errors import BadRequest, EngineBroke, GatewayError
from gateway.request import (
    ContentText,
    Delta,
    FinishReason,
    ReasoningText,
    Tokens,
    TokenShown,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.wire.jsonio import Decoder, JsonError, Raw, encode
from gateway.wire.sse import SseEvent

_FINISH: Mapping[str, FinishReason] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence"), "stop"),
    **dict.fromkeys(("length", "model_length"), "length"),
    "repetition": "length",  # vLLM cut an answer that went in circles
    **dict.fromkeys(("tool_calls", "function_call"), "tool_calls"),
    "content_filter": "content_filter",
}
_FIELDS = Decoder(dict[str, Raw])
_OBJECTS = Decoder(list[dict[str, Raw]])
_MAX_HELD_CHARS = 1 << 16
_TRUE, _NULL = Raw(b"true"), Raw(b"null")


class OpenAiCompatible:
    """The adapter."""

    kind = "openai"
    traits = Traits(takes_ids=False, streams_ids=False, choices=True)
    health_path = "/v1/models"
    info_paths = ("/v1/models",)
    identity_paths = ()
    load_paths = ()
    usage_path = None
    kv_path = None

    def call(self, work: Work) -> Call:
        """The client's body with `model`, `stream` and `stream_options.include_usage` set, all else byte for byte.

        Without a name of the engine's own `model` is left out: the client's name is the gateway's, and means nothing there.
        """
        try:
            fields = _FIELDS.decode(work.request.body)
            options = fields.get("stream_options", _NULL)
            given = {} if options == _NULL else _FIELDS.decode(options)
        except JsonError as error:
            raise BadRequest(f"The request body: {error.message}.") from None
        fields["stream"] = _TRUE
        fields["stream_options"] = Raw(encode({**given, "include_usage": _TRUE}))
        fields.pop("model", None)
        if work.model is not None:
            fields["model"] = Raw(encode(work.model))
        return Call("/v1/chat/completions", encode(fields))

    def reader(self, work: Work) -> "OpenAiReader":
        """A fresh reader."""
        request = work.request
        asked = request.logprobs is not None or request.return_token_ids
        return TokensReader() if asked and not request.stream else OpenAiReader()

    def error(self, status: int, body: bytes) -> GatewayError:
        """Nested under `error`, as OpenAI and vLLM write it, or flat, as SGLang does."""
        return refusal(status, body)

    def info(self, bodies: Sequence[bytes]) -> EngineInfo:
        """From `/v1/models`: the model where it is the only one, and its context where vLLM or llama.cpp says it."""
        try:
            models = _MODELS.decode(bodies[0]).data
        except (JsonError, IndexError):
            return EngineInfo()
        if len(models) != 1:
            return EngineInfo()
        meta = models[0].meta
        return EngineInfo(model=models[0].id, context_tokens=models[0].max_model_len or (meta.n_ctx if meta else None))

    def identity(self, _bodies: Sequence[bytes], info: EngineInfo, _rank: int | None) -> EngineInfo:
        """Such engines have nothing more in common."""
        return info

    def load(self, _body: bytes, _rank: int | None) -> EngineLoad:
        """Nor do they say their load in one way."""
        return EngineLoad()

    def kv_usage(self, _body: bytes) -> None:
        """Nor that."""

    def kv_reader(self) -> None:
        """It tells nothing of its cache."""

    def tokenize(self, _text: str, _model: str | None) -> None:
        """The gateway tokenises nothing for such an engine."""

    def token_ids(self, _body: bytes) -> tuple[int, ...]:
        """Never asked for."""
        raise EngineBroke("This engine was not asked for ids.")


ENGINE = OpenAiCompatible


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _CachedTokens(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _ReasoningTokens(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None
    completion_tokens_details: _ReasoningTokens | None = None
    reasoning_tokens: int | None = None  # SGLang's place for it


class _Event(msgspec.Struct, gc=False):
    choices: Sequence[_Choice] | None = None
    usage: _Usage | None = None
    error: ErrorObject | str | None = None
    object: str = ""
    message: str | None = None
    code: int | str | None = None


class _Likely(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None


class _Generated(_Likely, gc=False):
    top_logprobs: list[_Likely] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Generated] | None = None


class _TokensChoice(_Choice, gc=False):
    logprobs: _Logprobs | None = None
    token_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None


class _TokensEvent(_Event, gc=False):
    choices: Sequence[_TokensChoice] | None = None


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _OpenCall(msgspec.Struct):
    id: str = ""
    held: str = ""
    begun: bool = False


_Calls = dict[int, _OpenCall]
_EVENT: Decoder[_Event] = Decoder(_Event)
_TOKENS_EVENT: Decoder[_Event] = Decoder(_TokensEvent)
_MODELS = Decoder(_Models)
_NO_FUNCTION = _Function()


class OpenAiReader:
    """Reads one stream, all choices of it. A call is told from where its name is known."""

    _event = _EVENT

    def __init__(self) -> None:
        self._calls: dict[int, _Calls] = {}
        self._counted: dict[int, int] = {}
        self.done = False

    def whole(self, body: bytes) -> list[Chunk]:
        """A chat completion, as the events that would have said it: one for each choice, and one for the usage."""
        events = [SseEvent(data) for data in _as_events(mended(body))]
        chunks = [chunk for event in events if (chunk := self.chunk(event)) is not None]
        if all(chunk.finish is None for chunk in chunks):
            raise EngineBroke("The engine's answer has no end: it may be cut.")
        self.done = True
        return chunks

    def ended(self) -> None:
        """Only its end mark says that all choices and the usage were told."""

    def chunk(self, event: SseEvent) -> Chunk | None:
        """One event; None for the end mark and whatever follows it."""
        data = mended(event.data)
        if self.done or data == b"[DONE]":
            self.done = True
            return None
        said = read(self._event, data)
        if said.error is not None or said.object == "error":
            raise failure_in_stream(said.error or ErrorObject(message=said.message, code=said.code))
        usage = _usage(said.usage) if said.usage is not None else None
        if not said.choices:
            return Chunk(raw=data, usage=usage)
        if len(said.choices) > 1:
            raise EngineBroke("The engine sent several choices in one event.")
        choice = said.choices[0]
        deltas = self._deltas(choice)
        held = choice.delta is not None and choice.delta.tool_calls
        tokens = self._tokens(choice.index, said.usage) if deltas or held else 0
        reason = None
        if choice.finish_reason:  # some servers write an empty one into each event
            reason = finish(_FINISH, choice.finish_reason)
            deltas += self._ended(choice.index, reason)
        return Chunk(choice.index, "", tokens, None, None, tuple(deltas), data, reason, usage)

    def _deltas(self, choice: _Choice) -> list[Delta]:
        delta = choice.delta
        deltas: list[Delta] = []
        if delta is None:
            return deltas
        if thought := delta.reasoning_content or delta.reasoning:
            deltas.append(ReasoningText(thought))
        if delta.content:
            deltas.append(ContentText(delta.content))
        if delta.tool_calls:
            calls = self._calls.setdefault(choice.index, {})
            for call in delta.tool_calls:
                deltas += _called(calls, call)
        return deltas

    def _tokens(self, choice: int, usage: _Usage | None) -> int:
        """The tokens of an event that bears any: one, unless the engine counts along, and could be right."""
        counted = self._counted.get(choice, 0)
        said = (usage.completion_tokens if usage is not None else None) or 0
        tokens = said - counted if counted < said <= MAX_COUNT else 1
        self._counted[choice] = counted + tokens
        return tokens

    def _ended(self, choice: int, reason: FinishReason) -> list[Delta]:
        """The calls are whole now, but for the last one of an answer that was cut."""
        deltas: list[Delta] = []
        calls = self._calls.pop(choice, {})
        for number, (index, open_call) in enumerate(calls.items(), 1):
            if not open_call.begun:
                deltas += _begun(index, open_call, "")
            if reason != "length" or number < len(calls):
                deltas.append(ToolCallEnd(index))
        return deltas


class TokensReader(OpenAiReader):
    """Reads the tokens too, as OpenAI and vLLM tell them."""

    _event = _TOKENS_EVENT

    def _deltas(self, choice: _Choice) -> list[Delta]:
        deltas = super()._deltas(choice)
        tokens = _generated(choice) if isinstance(choice, _TokensChoice) else ()
        return [Tokens(tokens), *deltas] if tokens else deltas


def _as_events(body: bytes) -> list[bytes]:
    """The data of the events of a whole answer. Raises EngineBroke."""
    answer = read(_FIELDS, body)
    choices = read(_OBJECTS, bytes(answer.get("choices", b"[]")))
    if "error" in answer or not choices:
        return [body]
    usage = answer.pop("usage", _NULL)
    answer["object"] = Raw(b'"chat.completion.chunk"')
    events = []
    for choice in choices:
        choice["delta"] = _delta(choice.pop("message", _NULL))
        events.append(encode({**answer, "choices": [choice]}))
    return [*events, encode({**answer, "choices": [], "usage": usage})]


def _delta(message: Raw) -> Raw:
    """A whole message as a delta: its calls have an index."""
    delta = read(_FIELDS, bytes(message))
    told = delta.get("tool_calls", _NULL)
    if told != _NULL:
        calls = read(_OBJECTS, bytes(told))
        delta["tool_calls"] = Raw(encode([{"index": number, **call} for number, call in enumerate(calls)]))
    return Raw(encode(delta))


def _generated(choice: _TokensChoice) -> tuple[TokenShown, ...]:
    told = (choice.logprobs.content if choice.logprobs is not None else None) or []
    ids = choice.token_ids or [-1] * len(told)
    if not told:
        return tuple([TokenShown(token, b"") for token in ids])
    if len(ids) != len(told):
        raise EngineBroke("The engine sent token ids and log probabilities that are not of the same tokens.")
    return tuple([_token(id, each) for id, each in zip(ids, told, strict=True)])


def _token(id: int, told: _Generated) -> TokenShown:
    top = tuple([TokenShown(-1, _data(other), other.logprob) for other in told.top_logprobs or ()])
    return TokenShown(id, _data(told), told.logprob, top)


def _data(told: _Likely) -> bytes:
    return told.token.encode() if told.bytes is None else bytes(told.bytes)


def _called(calls: _Calls, call: _Call) -> list[Delta]:
    """What a piece of a call says. Without an index, a new id begins a call."""
    index = call.index
    if index is None:
        last = next(reversed(calls), None)
        index = last if last is not None and call.id in (None, "", calls[last].id) else len(calls)
    function = call.function or _NO_FUNCTION
    open_call = calls.setdefault(index, _OpenCall())
    if open_call.begun:
        return [ToolCallArguments(index, function.arguments)] if function.arguments else []
    open_call.id = open_call.id or call.id or ""
    open_call.held += function.arguments or ""
    if len(open_call.held) > _MAX_HELD_CHARS and not function.name:
        raise EngineBroke("The engine sent the arguments of a call without its name.")
    return _begun(index, open_call, function.name) if function.name else []


def _begun(index: int, open_call: _OpenCall, name: str) -> list[Delta]:
    """The call begins, with what was held of it."""
    open_call.begun = True
    start = ToolCallStart(index, open_call.id, name)
    return [start, ToolCallArguments(index, open_call.held)] if open_call.held else [start]


def _usage(usage: _Usage) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens or 0,
        (prompt.cached_tokens or 0) if prompt else 0,
        ((completion.reasoning_tokens if completion else None) or usage.reasoning_tokens or 0),
    )
