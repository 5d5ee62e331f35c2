"""A client's messages to the plain dicts that chat templates read.

Two steps. `turns` checks the conversation and takes away what only dialects know (parts, the old function role). `fit` then maps
it to what the model's template can show. Invariant: what the template would drop is mapped, with a note, or refused with the
message's index; broken arguments in the history never fail a request.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Any, Literal

from gateway.errors import BadRequest, shown
from gateway.prompt.probe import THINKING_SWITCHES, THOUGHT_END, THOUGHT_PARTS, Capabilities, with_thought
from gateway.request import Message, ToolCall, ToolSpec
from gateway.wire import jsonio

RAW_ARGUMENTS = "raw_arguments"
EFFORT = "reasoning_effort"
_TEXT_PARTS = frozenset({"text", "refusal"})
_NINE = re.compile("[0-9A-Za-z]{9}")
_ALPHANUMERICS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


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


def fit(
    conversation: Sequence[Turn], can: Capabilities, thinking: bool | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The template's messages, and notes on what was mapped. Raises BadRequest where the template would drop a message.

    `thinking` is what the request says of the template's thinking switch, None where it says nothing.
    """
    notes: list[str] = []
    fitted: list[Turn] = []
    for turn in _results_in_order(conversation, notes):
        _shown(turn, can)
        _place(_mapped_role(turn, can, notes, first=not fitted), fitted, can, notes)
    if can.system != "yes":
        fitted = _folded(fitted, can, notes)
    if not fitted:
        raise BadRequest("The model's chat template shows none of these messages.", param="messages")
    apart = [each for turn in fitted for each in _said_apart(turn, can, notes)]
    notes += _thought_notes(conversation, can, thinking)
    ids = _template_ids(conversation, can, notes)
    return [_dict(turn, can, ids, notes) for turn in apart], tuple(notes)


def sure_texts(messages: Iterable[Message]) -> Iterator[str]:
    """What templates show in full, but for blanks at its ends: what people wrote and tools returned. From answers they take
    thoughts away, and from system messages words that they understand."""
    for message in messages:
        if message.role in {"user", "tool", "function"}:
            content = message.content or ""
            parts = ({"type": "text", "text": content},) if isinstance(content, str) else content
            texts = (part.get("text") for part in parts if part.get("type") == "text")
            yield from (text.strip() for text in texts if isinstance(text, str))


def fit_kwargs(given: Mapping[str, Any], read: frozenset[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The client's variables that the template reads, and notes on the others. A thinking switch goes by the template's name;
    `reasoning_effort: none` is said by one that is off."""
    fitted: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in given.items():
        others = [other for other in THINKING_SWITCHES if name in THINKING_SWITCHES and other in read and other not in given]
        if name in read:
            fitted[name] = value
        elif others:
            fitted[others[0]] = value
            notes.append(f"{_sent_as(name, given)} is given as {others[0]}")
        elif name != EFFORT or value != "none" or thinking_switch(given) is not False:
            notes.append(f"{_sent_as(name, given)} is not read by the template")
    return fitted, tuple(notes)


def _sent_as(name: str, given: Mapping[str, Any]) -> str:
    """The client's field that a variable came from."""
    off = name in THINKING_SWITCHES and given.get(EFFORT) == "none" and given[name] is False
    return EFFORT if name == EFFORT or off else f"chat_template_kwargs.{name}"


def thinking_switch(kwargs: Mapping[str, Any]) -> bool | None:
    """What a template's variables say of its thinking, None where they say nothing."""
    return next((bool(kwargs[name]) for name in reversed(THINKING_SWITCHES) if kwargs.get(name) is not None), None)


def tool_dict(tool: ToolSpec, needed: Iterable[str] = ()) -> dict[str, Any]:
    """A tool as templates read it, with the keys that one needs. Without parameters it takes none, which is written out."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None or "description" in needed:
        function["description"] = tool.description or ""
    function["parameters"] = {"type": "object", "properties": {}} if tool.parameters is None else dict(tool.parameters)
    if "properties" in needed:
        function["parameters"].setdefault("properties", {})
    return {"type": "function", "function": function}


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


def _results_in_order(conversation: Sequence[Turn], notes: list[str]) -> list[Turn]:
    """Results in the order of their calls: many templates show no ids, so that only the order tells which is whose."""
    ordered: list[Turn] = []
    order: Mapping[str, int] = {}
    for answering, group in groupby(conversation, key=lambda turn: turn.answers is not None):
        run = list(group)
        if answering:
            placed = sorted(run, key=lambda turn: order.get(turn.answers.id, -1) if turn.answers else -1)
            if placed != run:
                notes.append(f"messages[{run[0].index}]: results put in the order of their calls")
            ordered += placed
        else:
            order = {call.id: number for number, call in enumerate(run[-1].calls)}
            ordered += run
    return ordered


def _shown(turn: Turn, can: Capabilities) -> None:
    place = f"messages[{turn.index}]"
    if turn.calls and can.tool_calls != "yes":
        raise _not_shown("does not show earlier tool calls to it", can.refusals.get("tool_calls"), f"{place}.tool_calls")
    if len(turn.calls) > 1 and can.parallel_calls != "yes":
        reason = can.refusals.get("parallel_calls")
        raise _not_shown("shows it only one tool call a message", reason, f"{place}.tool_calls[1]")
    if turn.role == "tool" and can.tool_results != "yes":
        raise _not_shown("does not show tool results to it", can.refusals.get("tool_results"), place)


def _follows(turn: Turn, fitted: Sequence[Turn], can: Capabilities) -> None:
    place = f"messages[{turn.index}]"
    begun = any(earlier.role not in {"system", "developer"} for earlier in fitted)
    if turn.role == "assistant" and not begun and can.first_answer != "yes":
        raise _not_shown("takes no answer before the first user message", can.refusals.get("first_answer"), place)
    if turn.role == "user" and fitted and fitted[-1].calls and can.open_calls != "yes":
        raise _not_shown("takes no user message before the results of calls", can.refusals.get("open_calls"), place)


def _not_shown(what: str, reason: str | None, place: str) -> BadRequest:
    """`reason`: the template's own words, where it has some."""
    return BadRequest(f"The model's chat template {what}{f': {reason}' if reason else '.'}", param=place)


def _mapped_role(turn: Turn, can: Capabilities, notes: list[str], *, first: bool) -> Turn:
    if turn.role != "developer" or (can.developer if first else can.later_developer) == "yes":
        return turn
    notes.append(f"messages[{turn.index}]: developer message given as system")
    return replace(turn, role="system")


def _place(turn: Turn, fitted: list[Turn], can: Capabilities, notes: list[str]) -> None:
    """Adds a turn, or its text to the one before where the template cannot show the two apart."""
    said = bool(turn.text or turn.calls or (turn.reasoning and can.reasoning == THOUGHT_PARTS))
    if turn.role == "assistant" and not said and can.empty_answer != "yes":
        notes.append(f"messages[{turn.index}]: answer without text left out")
        return
    _follows(turn, fitted, can)
    if _stands_alone(turn, fitted, can):
        fitted.append(turn)
    else:
        notes.append(f"messages[{turn.index}]: joined to the {fitted[-1].role} message before it")
        fitted[-1] = _joined(fitted[-1], turn)


def _stands_alone(turn: Turn, fitted: Sequence[Turn], can: Capabilities) -> bool:
    if not fitted:
        return True
    before = fitted[-1]
    if turn.role == "system" and can.later_system != "yes":
        if any(earlier.role not in {"system", "developer"} for earlier in fitted):
            raise BadRequest(
                "The model's chat template shows a system message only at the beginning.", param=f"messages[{turn.index}].role"
            )
        return False
    if turn.role == before.role == "user":
        return can.consecutive_users == "yes"
    return turn.role != "assistant" or before.role != "assistant" or bool(before.calls) or can.consecutive_assistants == "yes"


def _folded(fitted: list[Turn], can: Capabilities, notes: list[str]) -> list[Turn]:
    """For templates that do not always show a system message: the text goes to the head of a user message, where the template
    puts it when it does."""
    if not fitted or fitted[0].role != "system":
        return fitted
    system, *rest = fitted
    users = [place for place, turn in enumerate(rest) if turn.role == "user"]
    place = users[-1 if can.system_beside == "last" else 0] if users else -1
    if place < 0 or (place > 0 and can.system_beside == "first"):
        raise BadRequest(
            "The model's chat template has no system message, and no user message follows to carry it.",
            param=f"messages[{system.index}].role",
        )
    notes.append(f"messages[{system.index}]: system message given at the head of the user message")
    rest[place] = replace(rest[place], text=f"{system.text}\n\n{rest[place].text}")
    return rest


def _joined(before: Turn, turn: Turn) -> Turn:
    return replace(
        before,
        text=_lines(before.text, turn.text),
        reasoning=_lines(before.reasoning, turn.reasoning),
        calls=turn.calls,
    )


def _lines(*texts: str | None) -> str | None:
    given = [text for text in texts if text is not None]
    return "\n\n".join(given) if given else None


def _said_apart(turn: Turn, can: Capabilities, notes: list[str]) -> list[Turn]:
    """A message that calls, its text put where the template shows it."""
    if not turn.calls or not (turn.text or "").strip() or can.called_text == "beside":
        return [turn]
    calls = replace(turn, text=None)
    place = f"messages[{turn.index}]: text beside calls"
    if can.called_text == "thought":
        notes.append(f"{place} given as a thought")
        return [replace(calls, reasoning=_lines(turn.reasoning, turn.text))]
    if can.called_text == "before":
        notes.append(f"{place} given as a message before them")
        return [replace(turn, reasoning=None, calls=()), calls]
    notes.append(f"{place} left out, the template shows none")
    return [calls]


def _thought_notes(conversation: Sequence[Turn], can: Capabilities, thinking: bool | None) -> Iterator[str]:
    thoughtful = [turn.index for turn in conversation if turn.reasoning]
    if thoughtful and (can.reasoning is None or thinking in can.hides_thoughts):
        why = "shows none" if can.reasoning is None else "shows none unless thinking is switched on"
        yield f"messages[{thoughtful[-1]}]: thoughts are left out, the template {why} ({len(thoughtful)} in all)"
    for turn in conversation:
        if can.cuts_answers and turn.role == "assistant" and THOUGHT_END in (turn.text or ""):
            yield f"messages[{turn.index}]: what stands before {THOUGHT_END} is a thought to the template"


def _template_ids(conversation: Sequence[Turn], can: Capabilities, notes: list[str]) -> dict[str, str]:
    """Each call's id as the template takes it: the client's own where that may be. Later calls change no earlier id."""
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for call in (call for turn in conversation for call in turn.calls if call.id not in ids):
        fits = can.call_ids == "any" or (_NINE.fullmatch(call.id) and call.id not in taken)
        ids[call.id] = call.id if fits else _nine(call.id, taken)
        taken.add(ids[call.id])
    mapped = sum(given != own for given, own in ids.items())
    if mapped:
        notes.append(f"{mapped} call ids mapped to nine characters, as the template wants them")
    return ids


def _nine(call_id: str, taken: Collection[str]) -> str:
    """Nine letters and digits that stand for this id, none of those taken."""
    hashes = (hashlib.sha256(f"{attempt} {call_id}".encode()).digest() for attempt in count())
    tried = ("".join(_ALPHANUMERICS[byte % len(_ALPHANUMERICS)] for byte in digest[:9]) for digest in hashes)
    return next(text for text in tried if text not in taken)


def _dict(turn: Turn, can: Capabilities, ids: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role}
    if turn.text or not turn.calls:
        message["content"] = turn.text or ""
    elif can.no_content != "absent":
        message["content"] = "" if can.no_content == "empty" else None
    if turn.reasoning or (turn.reasoning is not None and can.reasoning != THOUGHT_PARTS):
        message = with_thought(message, can.reasoning or "reasoning_content", turn.reasoning)
    if turn.calls:
        calls = (_call_dict(turn.index, number, call, can, notes) for number, call in enumerate(turn.calls))
        message["tool_calls"] = [{"id": ids[call.id], **made} for call, made in zip(turn.calls, calls, strict=True)]
    if turn.answers is not None:
        message |= {"tool_call_id": ids[turn.answers.id], "name": turn.answers.name}
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
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}
