"""A checked conversation to the plain dicts that chat templates read, mapped to what the model's template can show.

Invariant: what the template is known to drop is mapped, with a note, or refused with the message's index; broken arguments in
the history never fail a request.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import Any

from gateway.errors import BadRequest
from gateway.prompt.conversation import Turn
from gateway.prompt.probe import THINKING_SWITCHES, THOUGHT_PARTS, Capabilities, with_thought
from gateway.request import ToolCall, ToolSpec
from gateway.wire import jsonio

RAW_ARGUMENTS = "raw_arguments"
EFFORT = "reasoning_effort"
_SYSTEMS = frozenset({"system", "developer"})
_NINE = re.compile("[0-9A-Za-z]{9}")
_ALPHANUMERICS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def fit(
    conversation: Sequence[Turn], can: Capabilities, thinking: bool | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The template's messages, and notes on what was mapped. Raises BadRequest where the template would drop a message.

    `thinking` is what the request says of the template's thinking switch, None where it says nothing.
    """
    fitting = _Fitting(can)
    messages = fitting.messages(conversation, thinking)
    return messages, tuple(fitting.notes)


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


def broken_note(index: int, number: int) -> str:
    """What the log says of a call in the history that is given as the text it is."""
    return f"messages[{index}].tool_calls[{number}]: arguments are no JSON object, given as text"


class _Fitting:
    """One conversation being mapped. `notes` grow on the way."""

    def __init__(self, can: Capabilities) -> None:
        self._can = can
        self.notes: list[str] = []
        self._groups: list[list[Turn]] = []  # turns that the template cannot show apart, one message each
        self._begun = False  # with something other than system messages

    def messages(self, conversation: Sequence[Turn], thinking: bool | None) -> list[dict[str, Any]]:
        self.notes += (note for turn in conversation for note in turn.notes)
        for turn in self._results_in_order(conversation):
            _check_shown(turn, self._can)
            self._place(self._mapped_role(turn))
        fitted = [_joined(group) for group in self._groups]
        if self._can.system != "yes":
            fitted = self._folded(fitted)
        if not fitted:
            raise BadRequest("The model's chat template shows none of these messages.", param="messages")
        apart = [each for turn in fitted for each in self._said_apart(turn)]
        self.notes += _thought_notes(conversation, self._can, thinking)
        ids = self._template_ids(conversation)
        return [self._dict(turn, ids) for turn in apart]

    def _results_in_order(self, conversation: Sequence[Turn]) -> list[Turn]:
        """Results in the order of their calls: many templates show no ids, so that only the order tells which is whose."""
        ordered: list[Turn] = []
        order: Mapping[str, int] = {}
        for answering, group in groupby(conversation, key=lambda turn: turn.answers is not None):
            run = list(group)
            if answering:
                placed = sorted(run, key=lambda turn: order.get(turn.answers.id, -1) if turn.answers else -1)
                if placed != run:
                    self.notes.append(f"messages[{run[0].index}]: results put in the order of their calls")
                ordered += placed
            else:
                order = {call.id: number for number, call in enumerate(run[-1].calls)}
                ordered += run
        return ordered

    def _mapped_role(self, turn: Turn) -> Turn:
        known = self._can.later_developer if self._groups else self._can.developer
        if turn.role != "developer" or known == "yes":
            return turn
        self.notes.append(f"messages[{turn.index}]: developer message given as system")
        return replace(turn, role="system")

    def _place(self, turn: Turn) -> None:
        """Adds a turn, or its text to the one before where the template cannot show the two apart."""
        said = bool(turn.text or turn.calls or (turn.reasoning and self._can.reasoning == THOUGHT_PARTS))
        if turn.role == "assistant" and not said and self._can.empty_answer != "yes":
            self.notes.append(f"messages[{turn.index}]: answer without text left out")
            return
        self._check_follows(turn)
        if self._stands_alone(turn):
            self._groups.append([turn])
        else:
            self.notes.append(f"messages[{turn.index}]: joined to the {self._groups[-1][0].role} message before it")
            self._groups[-1].append(turn)
        self._begun = self._begun or turn.role not in _SYSTEMS

    def _check_follows(self, turn: Turn) -> None:
        place, can = f"messages[{turn.index}]", self._can
        if turn.role == "assistant" and not self._begun and can.first_answer != "yes":
            raise _not_shown("takes no answer before the first user message", can.refusals.get("first_answer"), place)
        if turn.role == "user" and self._groups and self._groups[-1][-1].calls and can.open_calls != "yes":
            raise _not_shown("takes no user message before the results of calls", can.refusals.get("open_calls"), place)

    def _stands_alone(self, turn: Turn) -> bool:
        if not self._groups:
            return True
        before = self._groups[-1][-1]
        if turn.role == "system" and self._can.later_system != "yes":
            if self._begun:
                raise BadRequest(
                    "The model's chat template shows a system message only at the beginning.",
                    param=f"messages[{turn.index}].role",
                )
            return False
        if turn.role == before.role == "user":
            return self._can.consecutive_users == "yes"
        both_answer = turn.role == before.role == "assistant" and not before.calls
        return not both_answer or self._can.consecutive_assistants == "yes"

    def _folded(self, fitted: list[Turn]) -> list[Turn]:
        """For templates that do not always show a system message: the text goes to the head of a user message, where the template
        puts it when it does."""
        if not fitted or fitted[0].role != "system":
            return fitted
        system, *rest = fitted
        if not (system.text or "").strip():
            self.notes.append(f"messages[{system.index}]: system message without text left out")
            return rest
        users = [place for place, turn in enumerate(rest) if turn.role == "user"]
        place = users[-1 if self._can.system_beside == "last" else 0] if users else -1
        if place < 0 or (place > 0 and self._can.system_beside == "first"):
            raise BadRequest(
                "The model's chat template has no system message, and no user message follows to carry it.",
                param=f"messages[{system.index}].role",
            )
        self.notes.append(f"messages[{system.index}]: system message given at the head of the user message")
        rest[place] = replace(rest[place], text=f"{system.text}\n\n{rest[place].text}")
        return rest

    def _said_apart(self, turn: Turn) -> list[Turn]:
        """A message that calls, its text put where the template shows it."""
        form = self._can.called_text
        if not turn.calls or form == "beside":
            return [turn]
        if not (turn.text or "").strip():
            return [replace(turn, text=None)]
        calls = replace(turn, text=None)
        place = f"messages[{turn.index}]: text beside calls"
        if form == "thought":
            self.notes.append(f"{place} given as a thought")
            return [replace(calls, reasoning=_lines(turn.reasoning, turn.text))]
        if form == "before":
            self.notes.append(f"{place} given as a message before them")
            return [replace(turn, reasoning=None, calls=()), calls]
        self.notes.append(f"{place} left out, the template shows none")
        return [calls]

    def _template_ids(self, conversation: Sequence[Turn]) -> dict[str, str]:
        """Each call's id as the template takes it: the client's own where that may be. Later calls change no earlier id."""
        ids: dict[str, str] = {}
        taken: set[str] = set()
        for call in (call for turn in conversation for call in turn.calls if call.id not in ids):
            fits = self._can.call_ids == "any" or (_NINE.fullmatch(call.id) and call.id not in taken)
            ids[call.id] = call.id if fits else _nine(call.id, taken)
            taken.add(ids[call.id])
        mapped = sum(given != own for given, own in ids.items())
        if mapped:
            self.notes.append(f"{mapped} call ids mapped to nine characters, as the template wants them")
        return ids

    def _dict(self, turn: Turn, ids: Mapping[str, str]) -> dict[str, Any]:
        can = self._can
        message: dict[str, Any] = {"role": turn.role}
        if turn.text or not turn.calls:
            message["content"] = turn.text or ""
        elif can.no_content != "absent":
            message["content"] = "" if can.no_content == "empty" else None
        if turn.reasoning or (turn.reasoning is not None and can.reasoning != THOUGHT_PARTS):
            message = with_thought(message, can.reasoning or "reasoning_content", turn.reasoning)
        if turn.calls:
            calls = (self._call_dict(turn.index, number, call) for number, call in enumerate(turn.calls))
            message["tool_calls"] = [{"id": ids[call.id], **made} for call, made in zip(turn.calls, calls, strict=True)]
        if turn.answers is not None:
            message |= {"tool_call_id": ids[turn.answers.id], "name": turn.answers.name}
        return message

    def _call_dict(self, index: int, number: int, call: ToolCall) -> dict[str, Any]:
        arguments: object = arguments_object(call.arguments)
        if arguments is None:
            self.notes.append(broken_note(index, number))
            arguments = call.arguments if self._can.broken_arguments == "text" else {RAW_ARGUMENTS: call.arguments}
        if self._can.arguments == "text" and not isinstance(arguments, str):
            arguments = jsonio.dumps(arguments)
        return {"type": "function", "function": {"name": call.name, "arguments": arguments}}


def _check_shown(turn: Turn, can: Capabilities) -> None:
    place = f"messages[{turn.index}]"
    if turn.calls and can.tool_calls != "yes":
        raise _not_shown("does not show earlier tool calls to it", can.refusals.get("tool_calls"), f"{place}.tool_calls")
    if len(turn.calls) > 1 and can.parallel_calls != "yes":
        reason = can.refusals.get("parallel_calls")
        raise _not_shown("shows it only one tool call a message", reason, f"{place}.tool_calls[1]")
    if turn.role == "tool" and can.tool_results != "yes":
        raise _not_shown("does not show tool results to it", can.refusals.get("tool_results"), place)


def _not_shown(what: str, reason: str | None, place: str) -> BadRequest:
    """`reason`: the template's own words, where it has some."""
    return BadRequest(f"The model's chat template {what}{f': {reason}' if reason else '.'}", param=place)


def _joined(group: Sequence[Turn]) -> Turn:
    """The turns as one, which calls where the last does."""
    if len(group) == 1:
        return group[0]
    text, reasoning = _lines(*(turn.text for turn in group)), _lines(*(turn.reasoning for turn in group))
    return replace(group[0], text=text, reasoning=reasoning, calls=group[-1].calls)


def _lines(*texts: str | None) -> str | None:
    given = [text for text in texts if text is not None]
    return "\n\n".join(given) if given else None


def _thought_notes(conversation: Sequence[Turn], can: Capabilities, thinking: bool | None) -> Iterator[str]:
    thoughtful = [turn.index for turn in conversation if turn.reasoning]
    if thoughtful and (can.reasoning is None or thinking in can.hides_thoughts):
        why = "shows none" if can.reasoning is None else "shows none unless thinking is switched on"
        yield f"messages[{thoughtful[-1]}]: thoughts are left out, the template {why} ({len(thoughtful)} in all)"
    for turn in conversation:
        for end in sorted(can.cuts_at) if turn.role == "assistant" else ():
            if end in (turn.text or ""):
                yield f"messages[{turn.index}]: what stands before {end} is a thought to the template"


def _nine(call_id: str, taken: Collection[str]) -> str:
    """Nine letters and digits that stand for this id, none of those taken."""
    hashes = (hashlib.sha256(f"{attempt} {call_id}".encode()).digest() for attempt in count())
    tried = ("".join(_ALPHANUMERICS[byte % len(_ALPHANUMERICS)] for byte in digest[:9]) for digest in hashes)
    return next(text for text in tried if text not in taken)
