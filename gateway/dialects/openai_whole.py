"""A whole Chat Completions answer: one JSON body at the end.

Invariant: it is what a client makes of the stream of the same deltas; only calls that never ended, whose pieces a stream has
already given, are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from gateway.dialects.base import Answer
from gateway.dialects.openai_answer import TokenFields, counts, error_body, stamp
from gateway.errors import EngineBroke, GatewayError
from gateway.request import (
    ContentText,
    Delta,
    Finish,
    FinishReason,
    ParseFailure,
    ReasoningText,
    Tokens,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.wire.jsonio import Decoder, JsonError, encode


class WholeEncoder:
    """One JSON body at the end."""

    def __init__(self, answer: Answer, tokens: TokenFields | None = None) -> None:
        self._answer = answer
        self._tokens = tokens
        self._prompt_ids = answer.prompt_ids if tokens is not None and tokens.ids else None
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
        """As `feed`: the whole answer is the fold of the deltas. The prompt's ids are in none; an engine tells them once."""
        if self._prompt_ids is not None and not self._prompt_ids and b'"prompt_token_ids"' in raw:
            self._prompt_ids = _prompt_ids(raw)
        return self.feed(choice, deltas)

    def end(self, usage: Usage) -> bytes:
        """The body."""
        choices = [self._written(index) for index in sorted(self._choices)]
        prompt = {"prompt_token_ids": self._prompt_ids} if self._prompt_ids else {}
        return encode({**stamp("chat.completion", self._answer), "choices": choices, "usage": counts(usage), **prompt})

    def error(self, error: GatewayError) -> bytes:
        """The body of an error: nothing of the answer was given yet."""
        return error_body(error)

    def _written(self, index: int) -> Mapping[str, Any]:
        choice = self._choices[index]
        message = choice.message(self._answer.reasoning_fields)
        told = {} if self._tokens is None else self._tokens.told(choice.tokens)
        return {"index": index, "message": message, "logprobs": None, **told, "finish_reason": choice.finish_reason}


class _Prompted(msgspec.Struct):
    prompt_token_ids: list[int] | None = None


_PROMPTED = Decoder(_Prompted)


def _prompt_ids(raw: bytes) -> Sequence[int]:
    try:
        return _PROMPTED.decode(raw).prompt_token_ids or ()
    except JsonError as error:
        raise EngineBroke(f"The engine sent an event whose prompt_token_ids cannot be read: {error.message}.") from None


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
    tokens: list[Tokens] = field(default_factory=list)
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
            case Tokens():
                self.tokens.append(delta)
            case ParseFailure() | ContentText():
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
