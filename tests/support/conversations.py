"""Conversations as clients send them, for every template to be tried with; and the same with a mark in each thing that a model
must see.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from msgspec import structs

from gateway.request import GenerateRequest, Message, ToolCall, ToolSpec
from gateway.wire import jsonio

MarkKind = Literal["text", "result", "tool", "description", "call", "argument", "thought"]

_CITY: Mapping[str, Any] = {"type": "string", "description": "The city"}
_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {"city": _CITY}, "required": ["city"]}
_NESTED: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "filter": {
            "type": "object",
            "properties": {
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "description": "Any of these"},
                "range": {"type": "object", "properties": {"from": {"type": "number"}, "to": {"type": ["number", "null"]}}},
            },
            "required": ["tags"],
            "description": "What to keep",
        },
        "limit": {"type": "integer", "default": 10, "description": "At most"},
        "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "How"},
    },
    "required": ["filter"],
    "additionalProperties": False,
}
_WEATHER = ToolSpec("get_weather", "The weather of a city", _OBJECT)
_SEARCH = ToolSpec("search", "Searches documents", _NESTED)
_CLOCK = ToolSpec("clock", "The time now")
_USER = Message("user", "What is the weather in Paris?")
_TEXT: Mapping[str, Any] = {"type": "text", "text": "First part."}
_COMBINING = "e\u0301 a\u0308 \u1e69 s\u0323\u0307 \ufb01 \u212b \u0958"
_WIDE = "👩‍👩‍👧 🇫🇷 👍🏽 日本語 한국어 שלום \u202eعربى\u202c ไทย"


def call(number: int = 1, name: str = "get_weather", arguments: str = '{"city": "Paris"}') -> ToolCall:
    """A call with an id as OpenAI's SDK makes them."""
    return ToolCall(f"call_Ab{number}cDeFgHiJkLmNoPqRs", name, arguments)


def calling(*calls: ToolCall, text: str | None = None, thought: str | None = None) -> Message:
    """An assistant message that calls."""
    return Message("assistant", text, reasoning=thought, tool_calls=calls or (call(),))


def result(of: ToolCall | None = None, text: str = "18 degrees, light rain") -> Message:
    """What a tool returned."""
    return Message("tool", text, tool_call_id=(of or call()).id)


def _asked(*messages: Message, **fields: Any) -> GenerateRequest:
    return GenerateRequest("m", messages, **fields)


def _plain() -> dict[str, GenerateRequest]:
    said, more = Message("assistant", "Hello. How can I help?"), Message("user", "And in Rome?")
    system, developer = Message("system", "Be brief."), Message("developer", "Answer in French.")
    listed = Message("user", (_TEXT, {"type": "text", "text": "Second part."}))
    markup = "{{ x }} {% if y %} {# z #} </think> /no_think <think>t</think> <tool_call> [TOOL_CALLS] &lt;a&gt; <b>'q'</b>"
    return {
        "user": _asked(_USER),
        "system": _asked(system, _USER),
        "developer": _asked(developer, _USER),
        "system-developer": _asked(system, developer, _USER),
        "later-system": _asked(_USER, said, Message("system", "Now be long."), more),
        "later-developer": _asked(_USER, said, developer, more),
        "multi-turn": _asked(system, _USER, said, more, Message("assistant", "Rain, too."), Message("user", "Thanks")),
        "two-users": _asked(_USER, more),
        "two-users-later": _asked(_USER, said, more, Message("user", "Quickly!")),
        "two-assistants": _asked(_USER, said, Message("assistant", "One more thing."), more),
        "assistant-first": _asked(said, _USER),
        "list-content": _asked(Message("system", (_TEXT,)), listed, Message("assistant", (_TEXT,)), listed),
        "combining-marks": _asked(Message("system", _COMBINING), Message("user", f"{_COMBINING} \u0301 x\u200d\u00ad\ufeff")),
        "wide": _asked(Message("system", _WIDE), Message("user", _WIDE), Message("assistant", _WIDE), Message("user", _WIDE)),
        "empty-user": _asked(Message("user", "")),
        "empty-strings": _asked(Message("system", ""), _USER, Message("assistant", ""), Message("user", "")),
        "null-answer": _asked(_USER, Message("assistant", None), more),
        "blank-ends": _asked(
            Message("system", "\n Be brief. \t\n"), Message("user", "  hi \n\n"), Message("assistant", "\n\nyes \n"), more
        ),
        "markup": _asked(Message("system", markup), Message("user", markup), Message("assistant", markup), more),
        "long": _asked(system, Message("user", "The same words again, and 1234 more of them.\n" * 100)),
    }


def _thinking() -> dict[str, GenerateRequest]:
    thought = Message("assistant", "4", reasoning="Two and two make four.")
    more = Message("user", "And three?")
    asked = Message("user", "2+2?")
    switched = {
        f"{name}-{str(value).lower()}": _asked(asked, template_kwargs={name: value})
        for name in ("enable_thinking", "thinking")
        for value in (True, False)
    }
    return {
        **switched,
        "effort-none": _asked(asked, template_kwargs={"reasoning_effort": "none", "enable_thinking": False}),
        "effort-high": _asked(asked, template_kwargs={"reasoning_effort": "high"}),
        "unknown-switch": _asked(asked, template_kwargs={"no_such_switch": 1}),
        "thought-answered": _asked(asked, thought, more),
        "thought-without-text": _asked(asked, Message("assistant", None, reasoning="Hm."), more),
        "thought-in-loop": _asked(
            _USER, calling(thought="I need the weather."), result(), calling(call(2), thought="Again."), result(call(2)),
            tools=(_WEATHER,),
        ),
        **{
            f"thought-in-loop-{name}-{str(value).lower()}": _asked(
                _USER, calling(thought="I need the weather."), result(), tools=(_WEATHER,), template_kwargs={name: value}
            )
            for name in ("enable_thinking", "thinking")
            for value in (True, False)
        },
        "thought-and-text-and-call": _asked(
            _USER, calling(text="Let me look.", thought="I need the weather."), result(), tools=(_WEATHER,),
            template_kwargs={"enable_thinking": True},
        ),
        "thought-loop-answered": _asked(
            _USER, calling(thought="I need the weather."), result(), replace(thought, content="Rain."), more, tools=(_WEATHER,)
        ),
    }  # fmt: skip


def _tools() -> dict[str, GenerateRequest]:
    both = (call(1), call(2, "search", '{"filter": {"tags": ["a"], "range": {"from": 1.5}}, "limit": 3}'))
    unicode_tool = ToolSpec("wetter", f"Wetter für Städte {_WIDE}", {"type": "object", "properties": {"ort": _CITY}})
    answer, more = Message("assistant", "Light rain."), Message("user", "And in Rome?")
    listed = Message("tool", (_TEXT, {"type": "text", "text": "Second part."}), tool_call_id=call().id)
    three = (_WEATHER, _SEARCH, _CLOCK)
    return {
        "tools": _asked(_USER, tools=(_WEATHER,)),
        "several-tools": _asked(Message("system", "Be brief."), _USER, tools=three),
        "no-parameters": _asked(_USER, tools=(_CLOCK,)),
        "bare-object": _asked(_USER, tools=(ToolSpec("f", "A bare object", {"type": "object"}),)),
        "no-description": _asked(_USER, tools=(ToolSpec("f", None, _OBJECT),)),
        "unicode-tools": _asked(_USER, tools=(unicode_tool,)),
        "call": _asked(_USER, calling(), result(), tools=(_WEATHER,)),
        "call-with-text": _asked(_USER, calling(text="Let me look."), result(), tools=(_WEATHER,)),
        "call-with-text-answered": _asked(
            Message("system", "Be brief."), _USER, calling(text="Let me look."), result(), answer, more, tools=(_WEATHER,)
        ),
        "system-in-loop": _asked(
            Message("system", "Be brief."), _USER, answer, more, calling(), result(), calling(call(2)), result(call(2)),
            tools=(_WEATHER,),
        ),
        "call-answered": _asked(_USER, calling(), result(), answer, more, tools=(_WEATHER,)),
        "parallel-calls": _asked(_USER, calling(*both), result(both[0]), result(both[1], '{"hits": []}'), tools=three),
        "results-reordered": _asked(_USER, calling(*both), result(both[1], '{"hits": []}'), result(both[0]), tools=three),
        "two-loops": _asked(_USER, calling(), result(), answer, more, calling(call(2)), result(call(2)), tools=(_WEATHER,)),
        "call-without-tools": _asked(_USER, calling(), result(), answer, more),
        "empty-result": _asked(_USER, calling(), result(text=""), tools=(_WEATHER,)),
        "list-result": _asked(_USER, calling(), listed, tools=(_WEATHER,)),
        "empty-arguments": _asked(_USER, calling(call(1, "clock", "")), result(), tools=(_CLOCK,)),
        "broken-arguments": _asked(_USER, calling(call(1, arguments='{"city": "Par')), result(), tools=(_WEATHER,)),
        "list-arguments": _asked(_USER, calling(call(1, arguments='["Paris"]')), result(), tools=(_WEATHER,)),
        "hard-arguments": _asked(
            _USER, calling(call(1, arguments=jsonio.dumps({"city": "a\"b'\n</tool_call>&<é>\\", "n": None, "deep": [[{}]]}))),
            result(), tools=(_WEATHER,),
        ),
        "function-role": _asked(_USER, calling(), Message("function", "18 degrees", name="get_weather"), tools=(_WEATHER,)),
        "kimi-ids": _asked(
            _USER, calling(ToolCall("functions.get_weather:0", "get_weather", '{"city": "Rome"}')),
            Message("tool", "21", tool_call_id="functions.get_weather:0"), tools=(_WEATHER,),
        ),
        "nine-character-ids": _asked(
            _USER, calling(ToolCall("a1B2c3D4e", "get_weather", '{"city": "Rome"}')),
            Message("tool", "21", tool_call_id="a1B2c3D4e"), tools=(_WEATHER,),
        ),
        "unanswered-call": _asked(_USER, calling(), more, tools=(_WEATHER,)),
    }  # fmt: skip


CONVERSATIONS: Mapping[str, GenerateRequest] = MappingProxyType({**_plain(), **_thinking(), **_tools()})


def random_conversations(count: int) -> Iterator[GenerateRequest]:
    """Conversations whose texts are pieces that split words, and characters of every plane that holds some; always the same."""
    chance = random.Random(11)
    pieces = f"{_COMBINING} {_WIDE} the 's 'LL 123 4.5 !? ... {{\"a\": [1]}} <|im_ |> </tool _x \x04".split(" ")
    pieces += [" ", "  ", "\t", "\n", "\r\n", "\n\n\n", "\x0b", "\x85", "\u00a0", "\u3000", "\u2028"]
    planes = ((0x20, 0x500), (0x500, 0xD800), (0xE000, 0xFD00), (0x10000, 0x20000))

    def text() -> str:
        if chance.random() < 0.5:
            return "".join(chance.choice(pieces) for _ in range(chance.randrange(30)))
        return "".join(chr(chance.randrange(*chance.choice(planes))) for _ in range(chance.randrange(30)))

    for _ in range(count):
        made = call(chance.randrange(9), arguments=jsonio.dumps({"city": text(), text(): [text()]}))
        loop = [calling(made, text=text(), thought=text()), result(made, text())]
        turns = [Message("user", text()), *(loop if chance.random() < 0.5 else []), Message("assistant", text())]
        yield _asked(Message("system", text()), *turns * chance.randrange(3), Message("user", text()), tools=(_WEATHER,))


@dataclass(frozen=True, slots=True)
class Mark:
    """A word that a model must see. `index` is its message's place, or its tool's."""

    word: str
    kind: MarkKind
    index: int


def marked(request: GenerateRequest) -> tuple[GenerateRequest, list[Mark]]:
    """The request with a word of its own in each text, call, argument, result, tool, description and thought that has any."""
    marks: list[Mark] = []
    names = {name: _marked_name(name) for name in _names(request)}
    messages = tuple(_marked_message(index, message, names, marks) for index, message in enumerate(request.messages))
    tools = tuple(_marked_tool(index, tool, names, marks) for index, tool in enumerate(request.tools))
    return structs.replace(request, messages=messages, tools=tools), marks


def open_thoughts(messages: tuple[Message, ...]) -> range:
    """The places of the messages after the last one of a user: the running tool loop."""
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    return range(last + 1, len(messages))


def _names(request: GenerateRequest) -> Iterator[str]:
    yield from (tool.name for tool in request.tools)
    yield from (made.name for message in request.messages for made in message.tool_calls)


def _marked_name(name: str) -> str:
    return f"{name}_qnamed"


def _mark(kind: MarkKind, index: int, marks: list[Mark]) -> str:
    mark = Mark(f"q{kind}q{index}q{len(marks)}q", kind, index)
    marks.append(mark)
    return mark.word


def _marked_message(index: int, message: Message, names: Mapping[str, str], marks: list[Mark]) -> Message:
    kind: MarkKind = "result" if message.role in {"tool", "function"} else "text"
    content = message.content
    if isinstance(content, tuple):
        content = tuple({**part, "text": f"{_mark(kind, index, marks)} {part['text']}"} for part in content)
    elif content:
        content = f"{_mark(kind, index, marks)} {content}"
    thought = f"{_mark('thought', index, marks)} {message.reasoning}" if message.reasoning else message.reasoning
    calls = tuple(_marked_call(index, made, names, marks) for made in message.tool_calls)
    name = names.get(message.name or "", message.name)
    return replace(message, content=content, reasoning=thought, tool_calls=calls, name=name)


def _marked_call(index: int, made: ToolCall, names: Mapping[str, str], marks: list[Mark]) -> ToolCall:
    name = names[made.name]
    marks.append(Mark(name, "call", index))
    if not made.arguments:
        return replace(made, name=name)
    word = _mark("argument", index, marks)
    try:
        value = jsonio.decode(made.arguments)
    except jsonio.JsonError:
        return replace(made, name=name, arguments=made.arguments + word)
    whole = {**value, "marked": word} if isinstance(value, dict) else [*value, word]
    return replace(made, name=name, arguments=jsonio.dumps(whole))


def _marked_tool(index: int, tool: ToolSpec, names: Mapping[str, str], marks: list[Mark]) -> ToolSpec:
    marks.append(Mark(names[tool.name], "tool", index))
    described = f"{_mark('description', index, marks)} {tool.description}" if tool.description else tool.description
    return replace(tool, name=names[tool.name], description=described)
