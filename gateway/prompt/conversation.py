"""A client's messages, checked, without what only dialects know: parts, the old function role, call ids that are not unique."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from gateway.errors import BadRequest, shown
from gateway.request import Message, ToolCall

_TEXT_PARTS = frozenset({"text", "refusal"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A checked message. `index` is its place in the client's list; `answers` the call whose result it holds; `notes` what was
    mapped."""

    index: int
    role: Literal["system", "developer", "user", "assistant", "tool"]
    text: str | None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    answers: ToolCall | None = None
    notes: tuple[str, ...] = ()


def turns(messages: Iterable[Message]) -> list[Turn]:
    """The conversation, in which the calls of a message have ids of their own. Raises BadRequest with the field."""
    calls = _Calls()
    found = [_turn(index, message, calls) for index, message in enumerate(messages)]
    if not found:
        raise BadRequest("messages must hold at least one message.", param="messages")
    return found


def sure_texts(messages: Iterable[Message]) -> Iterator[str]:
    """What templates show in full, but for blanks at its ends: what people wrote and tools returned. From answers they take
    thoughts away, and from system messages words that they understand."""
    for message in messages:
        if message.role in {"user", "tool", "function"}:
            content = message.content or ""
            parts = ({"type": "text", "text": content},) if isinstance(content, str) else content
            texts = (part.get("text") for part in parts if part.get("type") == "text")
            yield from (text.strip() for text in texts if isinstance(text, str))


def _turn(index: int, message: Message, calls: "_Calls") -> Turn:
    text = _text(index, message)
    if message.role == "tool" or message.role == "function":  # noqa: PLR1714  mypy narrows only this form
        answered = calls.named(index, message.name) if message.role == "function" else calls.answered(index, message.tool_call_id)
        return Turn(index, "tool", text or "", answers=answered)
    if text is None and message.role != "assistant":
        raise BadRequest(f"A {message.role} message needs content.", param=f"messages[{index}].content")
    made = calls.made(message.tool_calls)
    notes = ("its calls share an id: results go to them by their order",) if made != message.tool_calls else ()
    return Turn(index, message.role, text, message.reasoning, made, notes=tuple(f"messages[{index}]: {note}" for note in notes))


def _text(index: int, message: Message) -> str | None:
    """The parts' texts as lines: words of two parts must not grow together."""
    if message.content is None or isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for number, part in enumerate(message.content):
        place = f"messages[{index}].content[{number}]"
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            raise BadRequest(f"This model reads text only, not a part of type {shown(str(kind))}.", param=place)
        value = part.get(kind)
        if not isinstance(value, str):
            raise BadRequest(f"A part of type {kind} needs {kind}, a string.", param=f"{place}.{kind}")
        texts.append(value)
    return "\n".join(texts)


class _Calls:
    """The calls so far, and which of them a result answers."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[ToolCall]] = {}  # of the last message with such an id: those that wait, in reverse
        self._by_name: dict[str, ToolCall] = {}
        self._shared: set[str] = set()

    def made(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """A message's calls, each with an id that no other of them has."""
        waiting: dict[str, list[ToolCall]] = {}
        taken = {call.id for call in calls}
        own: list[ToolCall] = []
        for call in calls:
            same = waiting.setdefault(call.id, [])
            if same:
                call_id = next(made for made in (f"{call.id}_{number}" for number in count(len(same) + 1)) if made not in taken)
                taken.add(call_id)
            own.append(replace(call, id=call_id) if same else call)
            same.append(own[-1])
        self._shared -= waiting.keys()
        self._shared |= {call_id for call_id, same in waiting.items() if len(same) > 1}
        self._by_id |= {call_id: same[::-1] for call_id, same in waiting.items()}
        self._by_name |= {call.name: call for call in own}
        return tuple(own)

    def answered(self, index: int, call_id: str | None) -> ToolCall:
        """The call of a tool message. Calls that share an id are answered one after the other."""
        place = f"messages[{index}].tool_call_id"
        waiting = self._by_id.get(call_id or "")
        if waiting is None:
            raise BadRequest(
                f"tool_call_id {shown(call_id or '')} is not the id of a call in an earlier assistant message.", param=place
            )
        if not waiting:
            raise BadRequest(f"tool_call_id {shown(call_id or '')} has more results than calls.", param=place)
        return waiting.pop() if call_id in self._shared else waiting[-1]

    def named(self, index: int, name: str | None) -> ToolCall:
        """The call of a message with the old function role."""
        call = self._by_name.get(name or "")
        if call is None:
            raise BadRequest("A function message needs the name of an earlier call.", param=f"messages[{index}].name")
        return call
