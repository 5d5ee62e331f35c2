"""OpenAI Chat Completions: the dialect that most harnesses speak.

Invariant: in a stream each choice has its role once and first, a call's id and name once, and no chunk after its finish; only a
complete answer ends with `[DONE]`. The streamed answer, folded, is the whole answer; only calls that never ended, whose pieces a
stream has already given, are left out of the whole one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, assert_never

from gateway.dialects import openai_request
from gateway.dialects.base import Answer, Encoder, Limits
from gateway.errors import EngineBroke, GatewayError
from gateway.request import (
    ContentText,
    Delta,
    Finish,
    FinishReason,
    GenerateRequest,
    ParseFailure,
    ReasoningText,
    Tokens,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.wire.jsonio import Decoder, JsonError, Raw, encode

_DONE = b"data: [DONE]\n\n"
_NO_CHOICES = Raw(b"[]")
_event: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])


class OpenAIChat:
    """The dialect."""

    name = "openai_chat"
    path = "/v1/chat/completions"

    def parse(self, body: bytes, limits: Limits) -> GenerateRequest:
        """The request. Raises BadRequest."""
        return openai_request.parse(body, limits)

    def encoder(self, request: GenerateRequest, answer: Answer) -> Encoder:
        """A fresh encoder: streamed or whole, as the request says."""
        return StreamEncoder(answer, request.include_usage) if request.stream else WholeEncoder(answer)

    def error(self, error: GatewayError) -> bytes:
        """The body of an error answer."""
        return encode(
            {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}},
        )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as `GET /v1/models` lists it."""

    name: str
    created_s: int
    context_tokens: int | None = None


def models_list(models: Iterable[ModelCard]) -> bytes:
    """The body of `GET /v1/models`."""
    return encode({"object": "list", "data": [_listed(model) for model in models]})


def _listed(model: ModelCard) -> Mapping[str, Any]:
    known = {} if model.context_tokens is None else {"max_model_len": model.context_tokens}
    return {"id": model.name, "object": "model", "created": model.created_s, "owned_by": "interlock", **known}


class StreamEncoder:
    """Chunks as server-sent events. What is the same in every chunk is encoded once."""

    def __init__(self, answer: Answer, include_usage: bool) -> None:
        same = _same("chat.completion.chunk", answer)
        self._head = b"data: " + encode(same)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._include_usage = include_usage
        self._usage_passed = False
        self._reasoning_fields = answer.reasoning_fields
        self._own = {key: Raw(encode(same[key])) for key in ("id", "created", "model")}
        self._choices: dict[int, _StreamedChoice] = {}

    def feed(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        """The chunks of these deltas; neighbours of one kind share a chunk."""
        streamed = self._choice(choice)
        if len(deltas) == 1:
            return streamed.chunk(deltas[0])
        return b"".join([streamed.chunk(delta) for delta in _merged(deltas)])

    def passed(self, choice: int, raw: bytes, deltas: Sequence[Delta]) -> bytes:
        """The engine's event with this answer's id, time and model name, and without usage that the client did not ask for."""
        try:
            fields = _event.decode(raw)
        except JsonError as error:
            raise EngineBroke(f"The engine sent an event that is not a JSON object: {error.message}.") from None
        usage_only = "usage" in fields and bytes(fields.get("choices", _NO_CHOICES)).translate(None, b" \n\r\t") == b"[]"
        if usage_only and not self._include_usage:
            return b""
        if usage_only:
            self._usage_passed = True
        else:
            self._choice(choice).opened()
        if not self._include_usage:
            fields.pop("usage", None)
        data = encode({**fields, **self._own})
        if b"\n" in data or b"\r" in data:  # between values only, since strings hold no raw line ends; in an event they end lines
            data = data.replace(b"\n", b" ").replace(b"\r", b" ")
        return b"data: " + data + b"\n\n"

    def end(self, usage: Usage) -> bytes:
        """Usage where it was asked for, and the terminator."""
        if not self._include_usage or self._usage_passed:
            return _DONE
        return self._head + b'],"usage":' + encode(_counts(usage)) + b"}\n\n" + _DONE

    def error(self, error: GatewayError) -> bytes:
        """The error as an event; no terminator follows."""
        return b"data: " + OpenAIChat().error(error) + b"\n\n"

    def _choice(self, index: int) -> "_StreamedChoice":
        choice = self._choices.get(index)
        if choice is None:
            head = self._head + b'{"index":' + encode(index) + b',"delta":'
            choice = self._choices[index] = _StreamedChoice(head, self._tail, self._reasoning_fields)
        return choice


class _StreamedChoice:
    """One choice's chunks."""

    __slots__ = ("_content", "_end", "_head", "_reasoning_keys", "_role", "_tail")

    def __init__(self, head: bytes, tail: bytes, reasoning_fields: Sequence[str]) -> None:
        self._head = head
        self._tail = tail
        self._content = head + b'{"content":'
        self._end = b'},"finish_reason":null}' + tail
        self._reasoning_keys = [encode(name) + b":" for name in reasoning_fields]
        self._role = head + b'{"role":"assistant","content":""' + self._end

    def opened(self) -> None:
        """The role was given."""
        self._role = b""

    def chunk(self, delta: Delta) -> bytes:
        """The chunk of one delta, after the role's if it is the first."""
        chunk = self._chunk(delta)
        if chunk and self._role:
            chunk = self._role + chunk
            self._role = b""
        return chunk

    def _chunk(self, delta: Delta) -> bytes:
        match delta:
            case ContentText(text):
                return self._content + encode(text) + self._end if text else b""
            case ReasoningText(text):
                return self._reasoning(encode(text)) if text else b""
            case ToolCallArguments(index, text):
                return self._call(encode({"index": index, "function": {"arguments": text}})) if text else b""
            case ToolCallStart(index, id, name):
                function = {"name": name, "arguments": ""}
                return self._call(encode({"index": index, "id": id, "type": "function", "function": function}))
            case Finish(reason):
                return self._head + b'{},"finish_reason":' + encode(reason) + b"}" + self._tail
            case ToolCallEnd() | ParseFailure() | Tokens():
                return b""
        assert_never(delta)

    def _reasoning(self, text: bytes) -> bytes:
        fields = b",".join([key + text for key in self._reasoning_keys])
        return self._head + b"{" + fields + self._end if fields else b""

    def _call(self, call: bytes) -> bytes:
        return self._head + b'{"tool_calls":[' + call + b"]" + self._end


class WholeEncoder:
    """One JSON body at the end."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._choices: dict[int, _WholeChoice] = {}

    def feed(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        """Keeps what these deltas say."""
        whole = self._choices.get(choice)
        if whole is None:
            whole = self._choices[choice] = _WholeChoice()
        for delta in deltas:
            if type(delta) is ContentText:  # nearly all are, and a match costs ten times this
                whole.content.append(delta.text)
            else:
                whole.add(delta)
        return b""

    def passed(self, choice: int, raw: bytes, deltas: Sequence[Delta]) -> bytes:
        """As `feed`: the whole answer is the fold of the deltas."""
        return self.feed(choice, deltas)

    def end(self, usage: Usage) -> bytes:
        """The body."""
        choices = [self._written(index) for index in sorted(self._choices)]
        return encode({**_same("chat.completion", self._answer), "choices": choices, "usage": _counts(usage)})

    def error(self, error: GatewayError) -> bytes:
        """The body of an error: nothing of the answer was given yet."""
        return OpenAIChat().error(error)

    def _written(self, index: int) -> Mapping[str, Any]:
        choice = self._choices[index]
        message = choice.message(self._answer.reasoning_fields)
        return {"index": index, "message": message, "logprobs": None, "finish_reason": choice.finish_reason}


@dataclass(slots=True)
class _WholeCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    ended: bool = False


@dataclass(slots=True)
class _WholeChoice:
    """One choice's fold."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _WholeCall] = field(default_factory=dict)
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta) -> None:
        """What one delta adds, but for content, which is added by the caller."""
        match delta:
            case ReasoningText(text):
                self.reasoning.append(text)
            case ToolCallStart(index, id, name):
                self.calls[index] = _WholeCall(id, name)
            case ToolCallArguments(index, text):
                self.calls[index].arguments.append(text)
            case ToolCallEnd(index):
                self.calls[index].ended = True
            case Finish(reason):
                self.finish_reason = reason
            case ParseFailure() | ContentText() | Tokens():
                pass
            case _:
                assert_never(delta)

    def message(self, reasoning_fields: Sequence[str]) -> Mapping[str, Any]:
        """The message. `content` is null only where calls say everything; a call that was cut is not one."""
        content, reasoning = "".join(self.content), "".join(self.reasoning)
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}
            for _, call in sorted(self.calls.items())
            if call.ended
        ]
        return {
            "role": "assistant",
            "content": content or (None if calls else ""),
            "refusal": None,
            **(dict.fromkeys(reasoning_fields, reasoning) if reasoning else {}),
            **({"tool_calls": calls} if calls else {}),
        }


def _same(kind: str, answer: Answer) -> Mapping[str, Any]:
    return {"id": answer.id, "object": kind, "created": answer.created_s, "model": answer.model}


def _counts(usage: Usage) -> Mapping[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _merged(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """The deltas that a stream shows, neighbouring pieces of one text joined."""
    visible = [delta for delta in deltas if not isinstance(delta, (ToolCallEnd, ParseFailure))]
    for _, same in groupby(visible, key=_text_of):
        run = list(same)
        pieces = "".join([delta.text for delta in run if isinstance(delta, (ContentText, ReasoningText, ToolCallArguments))])
        match run[0]:
            case ContentText():
                yield ContentText(pieces)
            case ReasoningText():
                yield ReasoningText(pieces)
            case ToolCallArguments(index):
                yield ToolCallArguments(index, pieces)
            case _:
                yield from run


def _text_of(delta: Delta) -> tuple[type, int]:
    """The text that a delta is a piece of."""
    return type(delta), delta.index if isinstance(delta, ToolCallArguments) else -1
