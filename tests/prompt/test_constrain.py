import json

import pytest
from support.vocabulary import SYNTAX

from gateway.prompt.constrain import MAX_CALLS, call_answer, call_text, cut_thoughts, restate, statement
from gateway.prompt.conversation import turns
from gateway.request import GenerateRequest, Message, ToolCall, ToolChoice, ToolSpec

F = ToolSpec("f", "does f", {"type": "object", "properties": {"ä": {"type": "string"}}})
G = ToolSpec("g")
CALL = ToolCall("c1", "f", '{"ä":1}')
USER = Message("user", "u")


def stated(*messages: Message, tools: tuple[ToolSpec, ...] = (F, G)) -> list[tuple[str, str | None]]:
    return [(turn.role, turn.text) for turn in restate(turns(messages), tools, SYNTAX)]


def test_the_statement_names_every_tool_and_the_syntax() -> None:
    text = statement((F, G), SYNTAX)
    assert (
        '{"name": "f", "description": "does f", "parameters": {"type": "object", "properties": {"ä": {"type": "string"}}}}'
        in text
    )
    assert '{"name": "g", "parameters": {"type": "object", "properties": {}}}' in text
    assert '<tool_call>\n{"name": "function name", "arguments": {...}}\n</tool_call>' in text


def test_the_tools_come_first_and_are_the_same_text_in_every_turn() -> None:
    head = statement((F, G), SYNTAX)
    assert stated(USER) == [("system", head), ("user", "u")]
    assert stated(Message("system", "s"), USER) == [("system", f"{head}\n\ns"), ("user", "u")]
    assert stated(Message("system", " "), USER) == [("system", head), ("user", "u")]
    assert stated(Message("developer", "d"), USER) == [("developer", f"{head}\n\nd"), ("user", "u")]


def test_history_is_written_in_the_syntax_of_calls() -> None:
    calls = Message("assistant", "Well.", tool_calls=(CALL, ToolCall("c2", "g", "")))
    results = (Message("tool", "1", tool_call_id="c1"), Message("tool", "2", tool_call_id="c2"))
    expected = [
        ("user", "u"),
        (
            "assistant",
            'Well.\n<tool_call>\n{"name": "f", "arguments": {"ä":1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        ),
        ("user", "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"),
    ]
    assert stated(USER, calls, *results, tools=()) == expected
    assert stated(USER, calls, *results, Message("assistant", "ok"), tools=()) == [*expected, ("assistant", "ok")]


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (' {"b":1,  "a":"ü"} ', '{"b":1,  "a":"ü"}'),
        ("", "{}"),
        ('"{\\"a\\":1}"', '{"a": 1}'),
        ('{"a":', '"{\\"a\\":"'),
        ("[1]", '"[1]"'),
    ],
)
def test_arguments_keep_their_bytes_where_they_are_an_object(arguments: str, written: str) -> None:
    text = call_text(ToolCall("c", 'f"', arguments), SYNTAX)
    assert text == f'<tool_call>\n{{"name": "f\\"", "arguments": {written}}}\n</tool_call>'
    assert json.loads(text.removeprefix(SYNTAX.opener).removesuffix(SYNTAX.closer))["name"] == 'f"'


@pytest.mark.parametrize(
    ("choice", "parallel", "names", "or_text", "calls"),
    [
        (ToolChoice("auto"), True, ["f", "g"], True, MAX_CALLS),
        (ToolChoice("auto"), False, ["f", "g"], True, 1),
        (ToolChoice("required"), True, ["f", "g"], False, MAX_CALLS),
        (ToolChoice("required"), False, ["f", "g"], False, 1),
        (ToolChoice("named", ("g",)), True, ["g"], False, 1),
        (ToolChoice("named", ("f", "g")), True, ["f", "g"], False, MAX_CALLS),
        (ToolChoice("named", ("f", "g")), False, ["f", "g"], False, 1),
    ],
)
def test_what_the_engine_must_enforce(choice: ToolChoice, parallel: bool, names: list[str], or_text: bool, calls: int) -> None:
    request = GenerateRequest("m", (USER,), tools=(F, G), tool_choice=choice, parallel_tool_calls=parallel)
    answer = call_answer(request, SYNTAX)
    assert [tool.name for tool in answer.tools] == names
    assert (answer.or_text, answer.max_calls) == (or_text, calls)
    assert (answer.opener, answer.closer, answer.separator) == (SYNTAX.opener, SYNTAX.closer, SYNTAX.separator)
    assert (answer.name_key, answer.arguments_key) == (SYNTAX.name_key, SYNTAX.arguments_key)


def test_thoughts_that_a_result_as_a_user_s_words_cuts_are_noted() -> None:
    calling = Message("assistant", None, reasoning="r", tool_calls=(CALL,))
    result = Message("tool", "18", tool_call_id="c1")
    running = turns((USER, Message("assistant", "a", reasoning="r"), USER, calling, result, calling, result))
    assert cut_thoughts(running, "no") == [
        "messages[3]: thoughts are left out, the template shows none before a result (2 in all)"
    ]
    assert cut_thoughts(running, "yes") == []
    assert cut_thoughts(turns((USER, calling, result, USER)), "no") == [], "an answered loop"
    assert cut_thoughts(turns((USER, Message("assistant", "a", reasoning="r"))), "no") == []
