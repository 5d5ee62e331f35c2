"""Reads the messages of a chat request: roles, content and its parts, calls of the history."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.dialects.checks import invalid
from gateway.dialects.openai_fields import Call, WireMessage
from gateway.errors import shown
from gateway.request import Message, Role, ToolCall
from gateway.wire.jsonio import Decoder, Raw

Content = str | tuple[Mapping[str, Any], ...] | None

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "function",
}
_PART_VALUES: Mapping[str, type] = {"text": str, "refusal": str, "image_url": dict, "input_audio": dict, "file": dict}
_OTHER_NAMES: Mapping[str, str] = {"input_text": "text", "output_text": "text"}  # the Responses API's, which some clients send

_text: Decoder[str] = Decoder(str)


def read_messages(wires: Sequence[WireMessage]) -> tuple[Message, ...]:
    """The conversation. Raises BadRequest, with the path of the first field found wrong."""
    if not wires:
        raise invalid("messages", "at least one message is needed")
    return tuple([_message(wire, index) for index, wire in enumerate(wires)])


def _message(wire: WireMessage, index: int) -> Message:
    at = f"messages[{index}]"
    role = _ROLES.get(wire.role)
    if role is None:
        raise invalid(f"{at}.role", f"{shown(wire.role)} is not one of {', '.join(_ROLES)}")
    content = _parts(wire.content, f"{at}.content") if isinstance(wire.content, list) else wire.content
    if role == "assistant":
        return _assistant(wire, content, index)
    if content is None and role in ("tool", "function"):
        content = ""  # a result may well be nothing
    if content is None:
        raise invalid(f"{at}.content", f"a message of role '{role}' needs content")
    if role == "tool" and wire.tool_call_id is None:
        raise invalid(f"{at}.tool_call_id", "a message of role 'tool' must say which call it answers")
    return Message(role, content, tool_call_id=wire.tool_call_id, name=wire.name)


def _assistant(wire: WireMessage, content: Content, index: int) -> Message:
    reasoning = wire.reasoning_content or wire.reasoning
    calls = tuple([_call(call, f"messages[{index}].tool_calls[{number}]") for number, call in enumerate(wire.tool_calls or ())])
    if (legacy := wire.function_call) is not None:
        calls += (ToolCall(f"call_{index}", legacy.name, _arguments(legacy.arguments)),)
    if wire.refusal:
        content = _with_refusal(content, wire.refusal)
    if content is None and not calls and not reasoning:
        content = ""  # the model said nothing, which harnesses keep in the history
    return Message("assistant", content, reasoning, calls, name=wire.name)


def _with_refusal(content: Content, refusal: str) -> Content:
    """The refusal as what the model said, after any other content."""
    if not content:
        return refusal
    parts = ({"type": "text", "text": content},) if isinstance(content, str) else content
    return (*parts, {"type": "refusal", "refusal": refusal})


def _call(wire: Call, at: str) -> ToolCall:
    if wire.type not in (None, "function"):
        raise invalid(f"{at}.type", f"{shown(wire.type)} is not 'function'")
    if wire.function is None:
        raise invalid(f"{at}.function", "this field is required")
    return ToolCall(wire.id, wire.function.name, _arguments(wire.function.arguments))


def _arguments(raw: Raw) -> str:
    """The text of a call's arguments: a string's own, else the JSON as it was sent; null and absent are no arguments."""
    data = bytes(raw)
    if data.startswith(b'"'):
        return _text.decode(data)
    return "{}" if data == b"null" else data.decode()


def _parts(parts: Sequence[Mapping[str, Any]], at: str) -> tuple[Mapping[str, Any], ...]:
    """The parts, each of a known type, with its value under that type's name."""
    return tuple([_part(part, f"{at}[{index}]") for index, part in enumerate(parts)])


def _part(part: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    given = part.get("type")
    kind = _OTHER_NAMES.get(given, given) if isinstance(given, str) else ""
    if kind not in _PART_VALUES:
        raise invalid(f"{at}.type", f"{shown(str(given))} is not one of {', '.join(_PART_VALUES)}")
    expected = _PART_VALUES[kind]
    if not isinstance(part.get(kind), expected):
        raise invalid(f"{at}.{kind}", f"expected {'a string' if expected is str else 'an object'}")
    return part if given == kind else {**part, "type": kind}


def unread_of_parts(messages: Iterable[WireMessage]) -> Iterator[str]:
    """The fields of content parts that nothing reads."""
    for parts in [wire.content for wire in messages if isinstance(wire.content, list)]:
        for part in parts:
            kind = part["type"]
            read = ("type", kind, _OTHER_NAMES.get(kind, kind))
            yield from (name for name, value in part.items() if name not in read and value is not None)
