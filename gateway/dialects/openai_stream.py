"""Chat Completions as server-sent events.

Invariant: each choice has its role once and first, a call's id and name once, and no chunk after its finish; only a complete
answer ends with `[DONE]`.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import assert_never

from gateway.dialects.base import Answer
from gateway.dialects.openai_answer import TokenFields, counts, error_body, stamp
from gateway.errors import EngineBroke, GatewayError
from gateway.request import (
    ContentText,
    Delta,
    Finish,
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


class StreamEncoder:
    """Chunks as server-sent events. What is the same in every chunk is encoded once."""

    def __init__(self, answer: Answer, include_usage: bool, tokens: TokenFields | None = None) -> None:
        same = stamp("chat.completion.chunk", answer)
        self._head = b"data: " + encode(same)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._include_usage = include_usage
        self._usage_passed = False
        self._reasoning_fields = answer.reasoning_fields
        self._own = {key: Raw(encode(same[key])) for key in ("id", "created", "model")}
        self._tokens = tokens
        self._prompt_ids = answer.prompt_ids if tokens is not None and tokens.ids else ()
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
        return self._head + b'],"usage":' + encode(counts(usage)) + b"}\n\n" + _DONE

    def error(self, error: GatewayError) -> bytes:
        """The error as an event; no terminator follows."""
        return b"data: " + error_body(error) + b"\n\n"

    def _choice(self, index: int) -> "_StreamedChoice":
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = self._new_choice(self._head + b'{"index":' + encode(index) + b",")
        return choice

    def _new_choice(self, begin: bytes) -> "_StreamedChoice":
        if self._tokens is None:
            return _StreamedChoice(begin, self._tail, self._reasoning_fields)
        return _TokensChoice(begin, self._tail, self._reasoning_fields, self._tokens, self._prompt_ids)


class _StreamedChoice:
    """One choice's chunks, all of which start with `begin`, the choice's first fields."""

    __slots__ = ("_content", "_end", "_head", "_reasoning_keys", "_role", "_tail")

    def __init__(self, begin: bytes, tail: bytes, reasoning_fields: Sequence[str]) -> None:
        head = begin + b'"delta":'
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


class _TokensChoice(_StreamedChoice):
    """One choice's chunks, each with the tokens that were generated since the one before. The first tells the prompt's ids."""

    __slots__ = ("_begin", "_fields", "_untold")

    def __init__(
        self, begin: bytes, tail: bytes, reasoning_fields: Sequence[str], fields: TokenFields, prompt_ids: Sequence[int]
    ) -> None:
        super().__init__(begin, tail, reasoning_fields)
        self._begin = begin
        self._fields = fields
        self._untold: list[Tokens] = []
        if prompt_ids:
            self._role = b'data: {"prompt_token_ids":' + encode(prompt_ids) + b"," + self._role.removeprefix(b"data: {")

    def _chunk(self, delta: Delta) -> bytes:
        if isinstance(delta, Tokens):
            self._untold.append(delta)
            return b""
        chunk = super()._chunk(delta)
        if not chunk or not self._untold:
            return chunk
        told = encode(self._fields.told(self._untold))
        self._untold = []
        return self._begin + told[1:-1] + b"," + chunk.removeprefix(self._begin)


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
