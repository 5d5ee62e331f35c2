import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.prompt.conversation import sure_texts, turns
from gateway.prompt.normalize import (
    RAW_ARGUMENTS,
    arguments_object,
    fit,
    fit_kwargs,
    thinking_switch,
    tool_dict,
)
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
        (
            (SYSTEM, USER, ANSWER, USER, ANSWER),
            {"system": "no", "system_beside": "last"},
            [("user", "u"), ("assistant", "a"), ("user", "s\n\nu"), ("assistant", "a")],
            ["messages[0]: system message given at the head of the user message"],
        ),
        ((USER,), {"system": "raises"}, [("user", "u")], []),
        (
            (Message("system", " "), USER),
            {"system": "raises"},
            [("user", "u")],
            ["messages[0]: system message without text left out"],
        ),
    ],
)  # fmt: skip
def test_what_the_template_would_drop_is_mapped_and_noted(
    messages: tuple[Message, ...], changes: dict[str, Any], expected: list[tuple[str, str]], noted: list[str]
) -> None:
    can = replace(ALL, **changes)
    assert [(message["role"], message["content"]) for message in fitted(*messages, can=can)] == expected
    assert list(notes(*messages, can=can)) == noted


@pytest.mark.parametrize("message", [Message("user", "x" * 400), SYSTEM])
def test_long_runs_of_one_role_are_mapped_in_linear_time(message: Message) -> None:
    said = turns([message] * 10_000)
    began = time.process_time()
    (joined,), _ = fit(said, replace(ALL, consecutive_users="raises", later_system="no"))
    assert time.process_time() - began < 1.5, "joining pair by pair takes 4 s and more"
    assert joined["content"] == "\n\n".join([str(message.content)] * 10_000)


TWO = Message("assistant", None, tool_calls=(CALL, ToolCall("c2", "g", "{}")))
ONE = Message("assistant", None, tool_calls=(CALL,))


@pytest.mark.parametrize(
    ("messages", "can", "param"),
    [
        ((USER, SYSTEM), replace(ALL, later_system="no"), "messages[1].role"),
        ((SYSTEM, ANSWER), replace(ALL, system="raises"), "messages[0].role"),
        ((SYSTEM,), replace(ALL, system="no"), "messages[0].role"),
        ((SYSTEM, ANSWER, USER), replace(ALL, first_answer="raises"), "messages[1]"),
        ((USER, ONE, USER), replace(ALL, open_calls="raises"), "messages[2]"),
        ((SYSTEM, ANSWER), replace(ALL, system="no", system_beside="last"), "messages[0].role"),
        ((USER, ONE), NONE, "messages[1].tool_calls"),
        ((USER, TWO), replace(ALL, parallel_calls="no"), "messages[1].tool_calls[1]"),
        ((ONE, Message("tool", "r", tool_call_id="c1")), replace(ALL, tool_results="raises"), "messages[1]"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_the_index(messages: tuple[Message, ...], can: Capabilities, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        fit(turns(messages), can)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "read", "fitted", "noted"),
    [
        ({"enable_thinking": True}, {"enable_thinking"}, {"enable_thinking": True}, ()),
        ({"foo": 1}, {"enable_thinking"}, {}, ("chat_template_kwargs.foo is not read by the template",)),
        (
            {"enable_thinking": False},
            {"thinking"},
            {"thinking": False},
            ("chat_template_kwargs.enable_thinking is given as thinking",),
        ),
        (
            {"thinking": True},
            {"enable_thinking"},
            {"enable_thinking": True},
            ("chat_template_kwargs.thinking is given as enable_thinking",),
        ),
        (
            {"thinking": True, "enable_thinking": False},
            {"thinking"},
            {"thinking": True},
            ("chat_template_kwargs.enable_thinking is not read by the template",),
        ),
        ({"enable_thinking": False}, set(), {}, ("chat_template_kwargs.enable_thinking is not read by the template",)),
        ({"reasoning_effort": "none", "enable_thinking": False}, {"enable_thinking"}, {"enable_thinking": False}, ()),
        (
            {"reasoning_effort": "none", "enable_thinking": False},
            {"thinking"},
            {"thinking": False},
            ("reasoning_effort is given as thinking",),
        ),
        (
            {"reasoning_effort": "none", "enable_thinking": False},
            set(),
            {},
            ("reasoning_effort is not read by the template",),
        ),
        (
            {"reasoning_effort": "none", "enable_thinking": True},
            set(),
            {},
            ("reasoning_effort is not read by the template", "chat_template_kwargs.enable_thinking is not read by the template"),
        ),
        (
            {"reasoning_effort": "high"},
            {"thinking"},
            {},
            ("reasoning_effort is not read by the template",),
        ),
        ({"raise_exception": 1}, {"messages"}, {}, ("chat_template_kwargs.raise_exception is not read by the template",)),
    ],
)
def test_a_template_is_given_the_variables_that_it_reads(
    given: dict[str, Any], read: set[str], fitted: dict[str, Any], noted: tuple[str, ...]
) -> None:
    assert fit_kwargs(given, frozenset(read)) == (fitted, noted)


def test_the_thinking_switch_goes_by_either_name() -> None:
    assert thinking_switch({}) is None
    assert thinking_switch({"enable_thinking": False}) is False
    assert thinking_switch({"enable_thinking": False, "thinking": True}) is True


@pytest.mark.parametrize(
    ("form", "thought", "expected", "noted"),
    [
        ("beside", None, [{"content": "t", "tool_calls": 1}], []),
        (
            "before",
            "r",
            [{"content": "t"}, {"content": "", "reasoning_content": "r", "tool_calls": 1}],
            ["messages[0]: text beside calls given as a message before them"],
        ),
        (
            "thought",
            "r",
            [{"content": "", "reasoning_content": "r\n\nt", "tool_calls": 1}],
            ["messages[0]: text beside calls given as a thought"],
        ),
        (
            "thought",
            None,
            [{"content": "", "reasoning_content": "t", "tool_calls": 1}],
            ["messages[0]: text beside calls given as a thought"],
        ),
        (
            "nowhere",
            None,
            [{"content": "", "tool_calls": 1}],
            ["messages[0]: text beside calls left out, the template shows none"],
        ),
    ],
)
def test_text_beside_calls_goes_where_the_template_shows_it(
    form: Any, thought: str | None, expected: list[dict[str, Any]], noted: list[str]
) -> None:
    can, message = replace(ALL, called_text=form), Message("assistant", "t", reasoning=thought, tool_calls=(CALL,))
    given = [{key: each[key] if key != "tool_calls" else 1 for key in each if key != "role"} for each in fitted(message, can=can)]
    assert given == expected
    assert list(notes(message, can=can)) == noted


@pytest.mark.parametrize(
    ("changes", "thinking", "noted"),
    [
        ({}, None, False),
        ({"reasoning": None}, True, True),
        ({"hides_thoughts": frozenset({None, False})}, True, False),
        ({"hides_thoughts": frozenset({None, False})}, None, True),
        ({"hides_thoughts": frozenset({False})}, False, True),
    ],
)
def test_thoughts_that_the_template_does_not_show_are_noted(changes: dict[str, Any], thinking: bool | None, noted: bool) -> None:
    said = turns((USER, Message("assistant", "a", reasoning="r"), Message("assistant", "b", reasoning="r")))
    told = fit(said, replace(ALL, **changes), thinking)[1]
    assert [note.startswith("messages[2]: thoughts are left out") and "2 in all" in note for note in told] == [True] * noted


def test_thoughts_may_be_parts_of_the_content() -> None:
    can = replace(ALL, reasoning="content")
    thought = {"type": "thinking", "thinking": "r"}
    assert fitted(Message("assistant", "x", reasoning="r"), can=can)[0]["content"] == [thought, part("x")]
    assert fitted(Message("assistant", None, reasoning="r"), can=can)[0]["content"] == [thought]
    assert fitted(Message("assistant", "x", reasoning=""), can=can)[0]["content"] == "x"


def test_a_thought_s_end_in_an_answer_is_noted_where_the_template_takes_it_for_one() -> None:
    answer = Message("assistant", "a</think>b")
    assert notes(answer, can=replace(ALL, cuts_at=frozenset({"</think>"}))) == (
        "messages[0]: what stands before </think> is a thought to the template",
    )
    assert notes(answer) == notes(Message("user", "a</think>b"), can=replace(ALL, cuts_at=frozenset({"</think>"}))) == ()


NINE = replace(ALL, call_ids="nine")


def ids(*messages: Message, can: Capabilities = NINE) -> list[str]:
    """Each call's id and each result's, as they come."""
    given: list[str] = []
    for message in fitted(*messages, can=can):
        given += [call["id"] for call in message.get("tool_calls", ())]
        given += [message["tool_call_id"]] if "tool_call_id" in message else []
    return given


def loop(call_id: str) -> tuple[Message, ...]:
    return Message("assistant", None, tool_calls=(ToolCall(call_id, "f", "{}"),)), Message("tool", "r", tool_call_id=call_id)


def test_call_ids_are_mapped_where_the_template_wants_nine_characters() -> None:
    own, answered = ids(USER, *loop("call_abc"))
    assert own == answered
    assert len(own) == 9
    assert own.isascii()
    assert own.isalnum()
    assert ids(USER, *loop("call_abc"), *loop("call_def"))[:2] == [own, own], "later calls change no earlier id"
    assert notes(USER, *loop("call_abc"), can=NINE) == ("1 call ids mapped to nine characters, as the template wants them",)
    assert ids(USER, *loop("call_abc"), can=ALL) == ["call_abc", "call_abc"]


def test_nine_character_ids_are_the_client_s_own_unless_they_are_taken() -> None:
    assert ids(USER, *loop("a1B2c3D4e")) == ["a1B2c3D4e"] * 2
    assert notes(USER, *loop("a1B2c3D4e"), can=NINE) == ()
    mapped = ids(USER, *loop("call_abc"))[0]
    first, _, second, result = ids(USER, *loop("call_abc"), *loop(mapped))
    assert first == mapped
    assert second == result != mapped
    assert ids(USER, *loop(mapped), *loop("call_abc"))[0] == mapped
    assert len(set(ids(USER, *loop(mapped), *loop("call_abc")))) == 2


def test_results_stand_in_the_order_of_their_calls() -> None:
    calls = Message("assistant", None, tool_calls=(ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"), ToolCall("c", "f", "{}")))
    results = [Message("tool", name, tool_call_id=name) for name in "cab"]
    assert [message["content"] for message in fitted(USER, calls, *results, USER)] == ["u", "", "a", "b", "c", "u"]
    assert notes(USER, calls, *results) == ("messages[2]: results put in the order of their calls",)
    assert notes(USER, calls, *sorted(results, key=lambda result: str(result.content))) == ()


def test_an_answer_without_text_is_left_out_where_the_template_refuses_it() -> None:
    can = replace(ALL, empty_answer="raises", consecutive_users="raises")
    assert fitted(USER, Message("assistant", None), USER, can=can) == [{"role": "user", "content": "u\n\nu"}]
    assert notes(USER, Message("assistant", ""), can=can) == ("messages[1]: answer without text left out",)
    assert len(fitted(Message("assistant", ""), USER, can=replace(can, first_answer="raises"))) == 1
    with pytest.raises(BadRequest, match="shows none of these"):
        fitted(Message("assistant", ""), can=can)


def test_answers_in_a_row_are_joined_where_the_template_refuses_them() -> None:
    can = replace(ALL, consecutive_assistants="raises")
    (joined,) = fitted(Message("assistant", "a", reasoning="r"), Message("assistant", "b", tool_calls=(CALL,)), can=can)
    assert (joined["content"], joined["reasoning_content"], len(joined["tool_calls"])) == ("a\n\nb", "r", 1)
    calling = Message("assistant", None, tool_calls=(CALL,))
    assert len(fitted(calling, Message("assistant", "b"), can=can)) == 2


def test_a_refusal_gives_the_template_s_own_words() -> None:
    can = replace(NONE, tool_calls="raises", refusals={"tool_calls": "no calls here!"})
    with pytest.raises(BadRequest, match="does not show earlier tool calls to it: no calls here!"):
        fitted(USER, Message("assistant", None, tool_calls=(CALL,)), can=can)


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
    bare = tool_dict(ToolSpec("f", None, {"type": "object"}), {"description", "properties"})["function"]
    assert bare == {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
