"""A client's messages to the plain dicts that chat templates read.

Two steps. `turns` checks the conversation and takes away what only dialects know (parts, call ids, the old function role). `fit`
then maps it to what the model's template can show. Invariant: what the template would drop is mapped, with a note, or refused
with the message's index; broken arguments in the history never fail a request.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.errors import BadRequest, shown
from gateway.prompt.probe import Capabilities
from gateway.request import Message, ToolCall, ToolSpec
from gateway.wire import jsonio

RAW_ARGUMENTS = "raw_arguments"
_TEXT_PARTS = frozenset({"text", "refusal"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A checked message. `index` is its place in the client's list; `answers` the call whose result it holds."""

    index: int
    role: Literal["system", "developer", "user", "assistant", "tool"]
    text: str | None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    answers: ToolCall | None = None


def turns(messages: Iterable[Message]) -> list[Turn]:
    """The conversation. Raises BadRequest with the field."""
    calls: dict[str, ToolCall] = {}
    found: list[Turn] = []
    for index, message in enumerate(messages):
        calls |= {call.id: call for call in message.tool_calls}
        found.append(_turn(index, message, calls))
    if not found:
        raise BadRequest("messages must hold at least one message.", param="messages")
    return found


def fit(conversation: Sequence[Turn], can: Capabilities) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The template's messages, and notes on what was mapped. Raises BadRequest where the template would drop a message."""
    notes: list[str] = []
    fitted: list[Turn] = []
    for turn in conversation:
        _shown(turn, can)
        _place(_mapped_role(turn, can, notes, first=not fitted), fitted, can, notes)
    if can.system != "yes":
        fitted = _folded(fitted, notes)
    return [_dict(turn, can, notes) for turn in fitted], tuple(notes)


def sure_texts(messages: Iterable[Message]) -> Iterator[str]:
    """What templates show in full, but for blanks at its ends: what people wrote and tools returned. From answers they take
    thoughts away, and from system messages words that they understand."""
    for message in messages:
        if message.role in {"user", "tool", "function"}:
            content = message.content or ""
            parts = ({"type": "text", "text": content},) if isinstance(content, str) else content
            texts = (part.get("text") for part in parts if part.get("type") == "text")
            yield from (text.strip() for text in texts if isinstance(text, str))


def unread_kwargs(given: Iterable[str], read: frozenset[str]) -> tuple[str, ...]:
    """Notes on the client's template variables that nothing reads."""
    return tuple(f"chat_template_kwargs.{name} is not read by the template" for name in given if name not in read)


def tool_dict(tool: ToolSpec) -> dict[str, Any]:
    """A tool as templates read it. Without parameters it takes none, which is written out."""
    described = {"description": tool.description} if tool.description is not None else {}
    parameters = {"type": "object", "properties": {}} if tool.parameters is None else dict(tool.parameters)
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": parameters}}


def arguments_object(text: str) -> dict[str, Any] | None:
    """A call's arguments as an object, {} for empty text, a doubly encoded object unwrapped; None where it is no object."""
    value: object = text
    for _ in range(2):
        if not isinstance(value, str):
            break
        if not value.strip():
            return {}
        try:
            value = jsonio.decode(value)
        except jsonio.JsonError:
            return None
    return value if isinstance(value, dict) else None


def _turn(index: int, message: Message, calls: Mapping[str, ToolCall]) -> Turn:
    text = _text(index, message)
    if message.role == "tool" or message.role == "function":  # noqa: PLR1714  mypy narrows only this form
        return Turn(index, "tool", text or "", answers=_answered(index, message, calls))
    if text is None and message.role != "assistant":
        raise BadRequest(f"A {message.role} message needs content.", param=f"messages[{index}].content")
    return Turn(index, message.role, text, message.reasoning, message.tool_calls)


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


def _answered(index: int, message: Message, calls: Mapping[str, ToolCall]) -> ToolCall:
    if message.role == "function":
        named = [call for call in calls.values() if call.name == message.name]
        if not named:
            raise BadRequest("A function message needs the name of an earlier call.", param=f"messages[{index}].name")
        return named[-1]
    call = calls.get(message.tool_call_id or "")
    if call is None:
        raise BadRequest(
            f"tool_call_id {shown(message.tool_call_id or '')} is not the id of a call in an earlier assistant message.",
            param=f"messages[{index}].tool_call_id",
        )
    return call


def _shown(turn: Turn, can: Capabilities) -> None:
    place = f"messages[{turn.index}]"
    if turn.calls and can.tool_calls != "yes":
        raise BadRequest("The model's chat template does not show earlier tool calls to it.", param=f"{place}.tool_calls")
    if len(turn.calls) > 1 and can.parallel_calls != "yes":
        raise BadRequest("The model's chat template shows it only one tool call a message.", param=f"{place}.tool_calls[1]")
    if turn.role == "tool" and can.tool_results != "yes":
        raise BadRequest("The model's chat template does not show tool results to it.", param=place)


def _mapped_role(turn: Turn, can: Capabilities, notes: list[str], *, first: bool) -> Turn:
    if turn.role != "developer" or (can.developer if first else can.later_developer) == "yes":
        return turn
    notes.append(f"messages[{turn.index}]: developer message given as system")
    return replace(turn, role="system")


def _place(turn: Turn, fitted: list[Turn], can: Capabilities, notes: list[str]) -> None:
    """Adds a turn, or its text to the one before where the template cannot show the two apart."""
    if turn.role == "system" and fitted and can.later_system != "yes":
        if any(earlier.role not in {"system", "developer"} for earlier in fitted):
            raise BadRequest(
                "The model's chat template shows a system message only at the beginning.", param=f"messages[{turn.index}].role"
            )
    elif not (turn.role == "user" and fitted and fitted[-1].role == "user" and can.consecutive_users != "yes"):
        fitted.append(turn)
        return
    notes.append(f"messages[{turn.index}]: joined to the {fitted[-1].role} message before it")
    fitted[-1] = _joined(fitted[-1], turn)


def _folded(fitted: list[Turn], notes: list[str]) -> list[Turn]:
    """For templates without a system role: the text goes to the head of the first user message."""
    if not fitted or fitted[0].role != "system":
        return fitted
    system, *rest = fitted
    if not rest or rest[0].role != "user":
        raise BadRequest(
            "The model's chat template has no system message, and no user message follows to carry it.",
            param=f"messages[{system.index}].role",
        )
    notes.append(f"messages[{system.index}]: system message given at the head of the user message")
    return [replace(rest[0], text=f"{system.text}\n\n{rest[0].text}"), *rest[1:]]


def _joined(before: Turn, turn: Turn) -> Turn:
    return replace(before, text=f"{before.text}\n\n{turn.text}")


def _dict(turn: Turn, can: Capabilities, notes: list[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role}
    if turn.text or not turn.calls:
        message["content"] = turn.text or ""
    elif can.no_content != "absent":
        message["content"] = "" if can.no_content == "empty" else None
    if turn.reasoning is not None:
        message[can.reasoning or "reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [_call_dict(turn.index, number, call, can, notes) for number, call in enumerate(turn.calls)]
    if turn.answers is not None:
        message |= {"tool_call_id": turn.answers.id, "name": turn.answers.name}
    return message


def broken_note(index: int, number: int) -> str:
    """What the log says of a call in the history that is given as the text it is."""
    return f"messages[{index}].tool_calls[{number}]: arguments are no JSON object, given as text"


def _call_dict(index: int, number: int, call: ToolCall, can: Capabilities, notes: list[str]) -> dict[str, Any]:
    arguments: object = arguments_object(call.arguments)
    if arguments is None:
        notes.append(broken_note(index, number))
        arguments = call.arguments if can.broken_arguments == "text" else {RAW_ARGUMENTS: call.arguments}
    if can.arguments == "text" and not isinstance(arguments, str):
        arguments = jsonio.dumps(arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
