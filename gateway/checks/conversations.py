"""Conversations that a template is tried with, each word of which that the model must see is a mark of its own."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.prompt.probe import THINKING_SWITCHES
from gateway.request import GenerateRequest, Message, ToolCall, ToolSpec
from gateway.wire import jsonio

MarkKind = Literal["text", "beside", "thought", "call", "result", "tool"]

_MARK = re.compile(r"[a-z_]{1,30}mark\b")
_ID = "call_Ab{}cDeFgHiJkLmNoPqRs"  # as OpenAI's library makes them
_CITY: Mapping[str, Any] = {
    "type": "object",
    "properties": {"citymark": {"type": "string", "description": "Where"}},
    "required": ["citymark"],
}
_DEEP: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "filter": {
            "type": "object",
            "description": "What to keep",
            "properties": {
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Any of these"},
                "range": {"type": "object", "properties": {"from": {"type": ["number", "null"]}}},
            },
            "required": ["tags"],
        },
        "limit": {"type": "integer", "default": 10},
        "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["filter"],
}
_WEATHER = ToolSpec("weather_toolmark", "Tells the weather, weather_descriptionmark.", _CITY)
_SEARCH = ToolSpec("search_toolmark", "Finds documents, search_descriptionmark.", _DEEP)
_CLOCK = ToolSpec("clock_toolmark", "Tells the time, clock_descriptionmark.")
_SYSTEM = Message("system", "Be brief, systemmark.")
_DEVELOPER = Message("developer", "Answer in French, developermark.")
_ASK, _MORE, _LAST = (Message("user", f"{text}.") for text in ("What is it, askmark", "And then, moremark", "Thanks, lastmark"))
_SAID = Message("assistant", "It is this, saidmark.")
_MARKUP = "{{ x }} {% if y %} {# z #} {% raw %} <b>'q'</b> &lt; \\n \"quoted\" `code` $1 %s {0}"
_UNICODE = "e\u0301 \u212b \ufb01 日本語 한국어 שלום ไทย 👩‍👩‍👧 🇫🇷 \u00a0\u2028 x\u200d\u00ad"


@dataclass(frozen=True, slots=True)
class Mark:
    """A word that the model must see. `place` is the field that holds it, `index` its message's, -1 for a tool's."""

    word: str
    kind: MarkKind
    place: str
    index: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request with its marks. `spells_controls`: its text spells tokens of the vocabulary that must stay text."""

    name: str
    request: GenerateRequest
    spells_controls: bool = False

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Every one in it, in its order."""
        messages = (mark for index, message in enumerate(self.request.messages) for mark in _of_message(index, message))
        tools = (
            Mark(word, "tool", f"tools[{index}]", -1)
            for index, tool in enumerate(self.request.offered)
            for word in _MARK.findall(
                " ".join([tool.name, tool.description or "", *(tool.parameters or {}).get("properties", ())])
            )
        )
        return (*messages, *tools)


def conversations(*, tools: bool, thoughts: bool, switch: bool, controls: Sequence[str] = ()) -> Iterator[Conversation]:
    """All of them. Where the template shows no `tools` or `thoughts`, or has no thinking `switch`, few have any; `controls` are
    the tokens to spell in text."""
    yield from _named(_plain())
    yield from _named(_answers())
    yield from _named(_called(_TOOLS if tools else _REFUSED_TOOLS))
    yield from _named(_hard_calls() if tools else {})
    yield from _named(_thinking(switch=switch))
    yield from _named(_thinking_loops() if tools and thoughts else {})
    if controls:
        spelling = Message("user", f"Say askmark {' '.join(controls)} now.")
        yield Conversation("control tokens", _asked(spelling, _SAID, _MORE), spells_controls=True)


def _named(requests: Mapping[str, GenerateRequest]) -> Iterator[Conversation]:
    return (Conversation(name, request) for name, request in requests.items())


def _asked(*messages: Message, tools: Sequence[ToolSpec] = (), **fields: Any) -> GenerateRequest:
    return GenerateRequest("check", messages, tuple(tools), **fields)


def _plain() -> dict[str, GenerateRequest]:
    parts = tuple({"type": "text", "text": text} for text in ("First part, askmark.", "Second part, partmark."))
    return {
        "user": _asked(_ASK),
        "system": _asked(_SYSTEM, _ASK),
        "developer": _asked(_DEVELOPER, _ASK),
        "system developer": _asked(_SYSTEM, _DEVELOPER, _ASK),
        "later system": _asked(_SYSTEM, _ASK, _SAID, Message("system", "Now at length, laterinmark."), _MORE),
        "later developer": _asked(_ASK, _SAID, _DEVELOPER, _MORE),
        "multi turn": _asked(_SYSTEM, _ASK, _SAID, _MORE, Message("assistant", "That, againmark."), _LAST),
        "two users": _asked(_ASK, _MORE),
        "two users later": _asked(_ASK, _SAID, _MORE, _LAST),
        "parts": _asked(Message("user", parts)),
        "unicode": _asked(Message("system", f"systemmark {_UNICODE}"), Message("user", f"{_UNICODE} askmark {_UNICODE}")),
        "markup": _asked(Message("system", f"{_MARKUP} systemmark"), Message("user", f"askmark {_MARKUP}")),
        "blanks": _asked(Message("system", "\n systemmark \t\n"), Message("user", "  askmark \n\n"), _SAID, _MORE),
        "empty user": _asked(_ASK, _SAID, Message("user", "")),
    }


def _answers() -> dict[str, GenerateRequest]:
    begun = Message("assistant", "It begins, saidmark")
    return {
        "empty answer": _asked(_ASK, Message("assistant", ""), _MORE),
        "null answer": _asked(_ASK, Message("assistant", None), _MORE),
        "two answers": _asked(_ASK, _SAID, Message("assistant", "One more, againmark."), _MORE),
        "first answer": _asked(_SAID, _ASK),
        "continue": _asked(_SYSTEM, _ASK, begun, add_generation_prompt=False, continue_final_message=True),
        "no generation prompt": _asked(_ASK, _SAID, add_generation_prompt=False),
    }


def _call(number: int = 1, arguments: str = '{"citymark": "argumentmark"}', tool: ToolSpec = _WEATHER) -> ToolCall:
    return ToolCall(_ID.format(number), tool.name, arguments)


def _calling(*calls: ToolCall, text: str | None = None, thought: str | None = None) -> Message:
    return Message("assistant", text, reasoning=thought, tool_calls=calls or (_call(),))


def _result(of: ToolCall | None = None, text: str = "18 degrees, resultmark") -> Message:
    return Message("tool", text, tool_call_id=(of or _call()).id)


def _called(names: Sequence[str]) -> dict[str, GenerateRequest]:
    """Those of these names."""
    second = _call(2, '{"filter": {"tags": ["secondmark"], "range": {"from": 1.5}}, "limit": 3}', _SEARCH)
    both = [_ASK, _calling(_call(), second), _result(), _result(second, '{"hits": [], "of": "otherresultmark"}')]
    loop = [_ASK, _calling(), _result()]
    again = [_calling(_call(3, '{"citymark": "thirdmark"}')), _result(_call(3), "20 degrees, laterresultmark")]
    made = {
        "tools": _asked(_ASK, tools=(_WEATHER,)),
        "several tools": _asked(_SYSTEM, _ASK, tools=(_WEATHER, _SEARCH, _CLOCK)),
        "call": _asked(*loop, tools=(_WEATHER,)),
        "parallel calls": _asked(*both, tools=(_WEATHER, _SEARCH)),
        "results reordered": _asked(*both[:2], *both[:1:-1], tools=(_WEATHER, _SEARCH)),
        "text beside call": _asked(_ASK, _calling(text="Let me look, besidemark."), _result(), tools=(_WEATHER,)),
        "two loops": _asked(_SYSTEM, *loop, *again, tools=(_WEATHER,)),
        "loop answered": _asked(*loop, _SAID, tools=(_WEATHER,), add_generation_prompt=False),
        "loop then user": _asked(_SYSTEM, *loop, _SAID, _MORE, tools=(_WEATHER,)),
        "loop without tools": _asked(*loop, _SAID, _MORE),
        "open call": _asked(_ASK, _calling(), _MORE, tools=(_WEATHER,)),
    }
    return {name: made[name] for name in names}


_TOOLS = (
    *("tools", "several tools", "call", "parallel calls", "results reordered", "text beside call", "two loops", "loop answered"),
    *("loop then user", "loop without tools", "open call"),
)
_REFUSED_TOOLS = ("tools", "loop without tools")


def _hard_calls() -> dict[str, GenerateRequest]:
    deep = jsonio.dumps(
        {"filter": {"tags": ["a\"b'\n<é>\\", "argumentmark"], "range": {"from": None}}, "mode": [[{}]], "limit": True}
    )
    kimi = ToolCall(f"functions.{_WEATHER.name}:0", _WEATHER.name, '{"citymark": "argumentmark"}')
    made = {
        "nested arguments": _call(1, deep, _SEARCH),
        "empty arguments": _call(1, "", _CLOCK),
        "no arguments": _call(1, "{}", _CLOCK),
        "arguments no object": _call(1, '["argumentmark"]'),
        "broken arguments": _call(1, '{"citymark": "argumentmark'),
        "other ids": kimi,
    }
    tools = (_WEATHER, _SEARCH, _CLOCK)
    calls = {name: _asked(_ASK, _calling(call), _result(call), tools=tools) for name, call in made.items()}
    return calls | {"empty result": _asked(_ASK, _calling(), _result(text=""), tools=tools)}


def _thinking(*, switch: bool) -> dict[str, GenerateRequest]:
    thought = Message("assistant", "It is this, saidmark.", reasoning="First that, thoughtmark.")
    values = (True, False) if switch else ()
    switched = {
        f"thinking {'on' if value else 'off'}": _asked(_ASK, _SAID, _MORE, template_kwargs={THINKING_SWITCHES[0]: value})
        for value in values
    }
    return {
        **switched,
        "thought": _asked(_ASK, thought, add_generation_prompt=False),
        "thought then user": _asked(_ASK, thought, _MORE),
    }


def _thinking_loops() -> dict[str, GenerateRequest]:
    thought = "I must look, thoughtmark."
    second = _call(2, '{"citymark": "secondmark"}')
    running = [
        _ASK,
        _calling(thought=thought),
        _result(),
        _calling(second, thought="Again, againmark."),
        _result(second, "19 degrees, otherresultmark"),
    ]
    beside = _calling(text="Let me look, besidemark.", thought=thought)
    return {
        "thought in loop": _asked(*running, tools=(_WEATHER,)),
        "thought beside text and call": _asked(_ASK, beside, _result(), tools=(_WEATHER,)),
        "thought loop then user": _asked(*running, _SAID, _MORE, tools=(_WEATHER,)),
    }


def _of_message(index: int, message: Message) -> Iterator[Mark]:
    place = f"messages[{index}]"
    kind: MarkKind = "result" if message.role == "tool" else "beside" if message.tool_calls else "text"
    content = message.content or ""
    text = content if isinstance(content, str) else " ".join(str(part["text"]) for part in content)
    yield from (Mark(word, kind, place, index) for word in _MARK.findall(text))
    yield from (Mark(word, "thought", f"{place}.reasoning", index) for word in _MARK.findall(message.reasoning or ""))
    for number, call in enumerate(message.tool_calls):
        words = _MARK.findall(f"{call.name} {call.arguments}")
        yield from (Mark(word, "call", f"{place}.tool_calls[{number}]", index) for word in words)
