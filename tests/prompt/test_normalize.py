from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.prompt.normalize import RAW_ARGUMENTS, arguments_object, fit, sure_texts, tool_dict, turns, unread_kwargs
from gateway.prompt.probe import Capabilities
from gateway.request import Message, ToolCall, ToolSpec

ALL = Capabilities(
    "yes", "yes", "yes", "yes", "yes", "yes", "yes", "yes", "yes", "object", "text", "empty", "reasoning_content", "<A>"
)
NONE = Capabilities("no", "no", "no", "no", "no", "no", "no", "no", "no", "object", "wrapped", "empty", None, "<A>")
CALL = ToolCall("c1", "f", '{"a": 1}')
USER = Message("user", "u")


def part(text: Any, kind: Any = "text", key: str = "text") -> Mapping[str, Any]:
    return {"type": kind, key: text}


def fitted(*messages: Message, can: Capabilities = ALL) -> list[dict[str, Any]]:
    return fit(turns(messages), can)[0]


def notes(*messages: Message, can: Capabilities = ALL) -> tuple[str, ...]:
    return fit(turns(messages), can)[1]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message("system", "s"), {"role": "system", "content": "s"}),
        (Message("developer", "d"), {"role": "developer", "content": "d"}),
        (USER, {"role": "user", "content": "u"}),
        (Message("user", ()), {"role": "user", "content": ""}),
        (Message("user", (part("a"), part("b"))), {"role": "user", "content": "a\nb"}),
        (Message("assistant", (part("n", "refusal", "refusal"),)), {"role": "assistant", "content": "n"}),
        (Message("assistant", None), {"role": "assistant", "content": ""}),
        (Message("assistant", "x", reasoning="r"), {"role": "assistant", "content": "x", "reasoning_content": "r"}),
    ],
)
def test_plain_messages(message: Message, expected: dict[str, Any]) -> None:
    assert fitted(message) == [expected]
    assert notes(message) == ()


def test_a_tool_loop() -> None:
    messages = fitted(USER, Message("assistant", None, tool_calls=(CALL,)), Message("tool", "r", tool_call_id="c1"))
    assert messages[1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "f"},
    ]


@pytest.mark.parametrize(("form", "expected"), [("empty", {"content": ""}), ("absent", {}), ("null", {"content": None})])
def test_a_call_without_text(form: Any, expected: dict[str, Any]) -> None:
    (message,) = fitted(Message("assistant", None, tool_calls=(CALL,)), can=replace(ALL, no_content=form))
    assert {key: message[key] for key in message if key == "content"} == expected
    (message,) = fitted(Message("assistant", "t", tool_calls=(CALL,)), can=replace(ALL, no_content=form))
    assert message["content"] == "t"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  ", {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('""', {}),
        ("[1]", None),
        ("null", None),
        ("{", None),
        ('"{"', None),
        ('"\\"{}\\""', None),
        ("[" * 5000, None),
    ],
)
def test_arguments(text: str, value: object) -> None:
    assert arguments_object(text) == value


@pytest.mark.parametrize(
    ("changes", "text", "given"),
    [
        ({}, '{"a": 1}', {"a": 1}),
        ({"arguments": "text"}, '{"a":1}', '{"a": 1}'),
        ({}, '{"a":', '{"a":'),
        ({"broken_arguments": "wrapped"}, '{"a":', {RAW_ARGUMENTS: '{"a":'}),
        ({"arguments": "text", "broken_arguments": "text"}, '{"a":', '{"a":'),
        ({"arguments": "text", "broken_arguments": "wrapped"}, "x", '{"raw_arguments": "x"}'),
    ],
)
def test_arguments_in_the_form_that_the_template_takes(changes: dict[str, Any], text: str, given: object) -> None:
    can = replace(ALL, **changes)
    message = Message("assistant", None, tool_calls=(ToolCall("c1", "f", text),))
    assert fitted(message, can=can)[0]["tool_calls"][0]["function"]["arguments"] == given
    broken = arguments_object(text) is None
    assert notes(message, can=can) == (
        ("messages[0].tool_calls[0]: arguments are no JSON object, given as text",) if broken else ()
    )


def test_the_old_function_role_is_a_tool_s() -> None:
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}"), ToolCall("c3", "g", "{}"))
    messages = fitted(Message("assistant", None, tool_calls=calls), Message("function", "r", name="f"))
    assert messages[1] == {"role": "tool", "content": "r", "tool_call_id": "c2", "name": "f"}
    assert fitted(Message("assistant", None, tool_calls=calls), Message("tool", None, tool_call_id="c3"))[1]["content"] == ""


def test_reasoning_goes_where_the_template_reads_it() -> None:
    thought = Message("assistant", "x", reasoning="r")
    assert fitted(thought, can=replace(ALL, reasoning="thinking")) == [{"role": "assistant", "content": "x", "thinking": "r"}]
    assert fitted(thought, can=replace(ALL, reasoning=None))[0]["reasoning_content"] == "r"


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ((), "messages", "at least one"),
        ((Message("user", None),), "messages[0].content", "user message needs content"),
        ((USER, Message("system", None)), "messages[1].content", "system message needs content"),
        ((Message("user", (part("a"), {"type": "image_url", "image_url": {}})),), "messages[0].content[1]", "'image_url'"),
        ((Message("user", (part("a", "input_audio"),)),), "messages[0].content[0]", "'input_audio'"),
        ((Message("user", ({},)),), "messages[0].content[0]", "'None'"),
        ((Message("user", (part("a", ["text"]),)),), "messages[0].content[0]", "reads text only"),
        ((Message("user", (part(1),)),), "messages[0].content[0].text", "a string"),
        ((Message("user", (part("a", "refusal"),)),), "messages[0].content[0].refusal", "a string"),
        ((Message("user", (part("a", "input_text"),)),), "messages[0].content[0]", "'input_text'"),
        ((USER, Message("tool", "r", tool_call_id="nope")), "messages[1].tool_call_id", "'nope' is not the id"),
        ((USER, Message("tool", "r")), "messages[1].tool_call_id", "'' is not the id"),
        (
            (Message("tool", "r", tool_call_id="c1"), Message("assistant", None, tool_calls=(CALL,))),
            "messages[0].tool_call_id",
            "'c1' is not the id",
        ),
        ((Message("function", "r", name="f"),), "messages[0].name", "name of an earlier call"),
        ((Message("function", "r"),), "messages[0].name", "name of an earlier call"),
    ],
)
def test_a_conversation_that_cannot_be_is_refused_by_its_field(messages: tuple[Message, ...], param: str, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        turns(messages)
    assert caught.value.param == param
    assert says in caught.value.message


SYSTEM, DEVELOPER = Message("system", "s"), Message("developer", "d")
ANSWER = Message("assistant", "a")


@pytest.mark.parametrize(
    ("messages", "changes", "expected", "noted"),
    [
        (
            (DEVELOPER, USER),
            {"developer": "no"},
            [("system", "d"), ("user", "u")],
            ["messages[0]: developer message given as system"],
        ),
        ((SYSTEM, DEVELOPER, USER), {"later_developer": "yes"}, [("system", "s"), ("developer", "d"), ("user", "u")], []),
        (
            (SYSTEM, DEVELOPER, USER),
            {"later_developer": "raises", "later_system": "no"},
            [("system", "s\n\nd"), ("user", "u")],
            ["messages[1]: developer message given as system", "messages[1]: joined to the system message before it"],
        ),
        (
            (DEVELOPER, SYSTEM, USER),
            {"later_system": "no"},
            [("developer", "d\n\ns"), ("user", "u")],
            ["messages[1]: joined to the developer message before it"],
        ),
        ((USER, SYSTEM), {"later_system": "yes"}, [("user", "u"), ("system", "s")], []),
        (
            (USER, USER, ANSWER, USER),
            {"consecutive_users": "raises"},
            [("user", "u\n\nu"), ("assistant", "a"), ("user", "u")],
            ["messages[1]: joined to the user message before it"],
        ),
        ((USER, USER), {}, [("user", "u"), ("user", "u")], []),
        (
            (SYSTEM, USER, ANSWER),
            {"system": "raises"},
            [("user", "s\n\nu"), ("assistant", "a")],
            ["messages[0]: system message given at the head of the user message"],
        ),
        ((USER,), {"system": "raises"}, [("user", "u")], []),
    ],
)  # fmt: skip
def test_what_the_template_would_drop_is_mapped_and_noted(
    messages: tuple[Message, ...], changes: dict[str, Any], expected: list[tuple[str, str]], noted: list[str]
) -> None:
    can = replace(ALL, **changes)
    assert [(message["role"], message["content"]) for message in fitted(*messages, can=can)] == expected
    assert list(notes(*messages, can=can)) == noted


TWO = Message("assistant", None, tool_calls=(CALL, ToolCall("c2", "g", "{}")))
ONE = Message("assistant", None, tool_calls=(CALL,))


@pytest.mark.parametrize(
    ("messages", "can", "param"),
    [
        ((USER, SYSTEM), replace(ALL, later_system="no"), "messages[1].role"),
        ((SYSTEM, ANSWER), replace(ALL, system="raises"), "messages[0].role"),
        ((SYSTEM,), replace(ALL, system="no"), "messages[0].role"),
        ((USER, ONE), NONE, "messages[1].tool_calls"),
        ((USER, TWO), replace(ALL, parallel_calls="no"), "messages[1].tool_calls[1]"),
        ((ONE, Message("tool", "r", tool_call_id="c1")), replace(ALL, tool_results="raises"), "messages[1]"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_the_index(messages: tuple[Message, ...], can: Capabilities, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        fit(turns(messages), can)
    assert caught.value.param == param


def test_names_that_nothing_reads_are_noted() -> None:
    assert unread_kwargs({"enable_thinking": True, "foo": 1}, frozenset({"enable_thinking"})) == (
        "chat_template_kwargs.foo is not read by the template",
    )


def test_only_what_people_wrote_and_tools_returned_is_surely_shown() -> None:
    messages = (
        Message("system", "s"),
        DEVELOPER,
        Message("user", " \u3000u v\n"),
        Message("user", (part("a"), part(1), part("r", "refusal", "refusal"), {"type": "image_url", "text": "i"}, part("b"))),
        Message("assistant", "x", reasoning="r", tool_calls=(CALL,)),
        Message("tool", "t", tool_call_id="c1"),
        Message("function", None, name="f"),
    )
    assert [*sure_texts(messages)] == ["u v", "a", "b", "t", ""]


def test_a_tool_as_templates_read_it() -> None:
    assert tool_dict(ToolSpec("f", "d", {"type": "object"}, strict=True)) == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    assert tool_dict(ToolSpec("f"))["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}
