"""`interlock parse`: raw output in, the message out, the same however it is cut."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.formats.registry import load
from gateway.parsing import chunking, parse, read_case, read_tools

FORMATS = load()
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é 🦙"}}\n</tool_call>'


def parsed(chunks: str = "one", **case: Any) -> Mapping[str, Any]:
    line = json.dumps({"format": "hermes", "tools": TOOLS, **case}).encode()
    return parse(read_case(line), FORMATS, chunking(chunks))


@pytest.mark.parametrize("chunks", ["one", "char", "random:1", "random:77"])
@pytest.mark.parametrize("spans", [None, [[0, 0]]])
def test_the_message_is_the_same_however_it_is_cut(chunks: str, spans: list[list[int]] | None) -> None:
    assert parsed(chunks, raw=f"<think>hm</think>Hi{CALL}", literal_spans=spans) == {
        "reasoning": "hm",
        "content": "Hi",
        "tool_calls": [{"id": "call_0", "name": "f", "arguments": '{"a": "é 🦙"}'}],
        "failures": [],
        "finish_reason": "tool_calls",
    }


@pytest.mark.parametrize("chunks", ["one", "char", "random:5"])
def test_a_marker_in_a_literal_span_is_text(chunks: str) -> None:
    raw = f"Say <tool_call>: {CALL}"
    said = parsed(chunks, raw=raw, literal_spans=[[4, 15]])
    assert (said["content"], len(said["tool_calls"])) == ("Say <tool_call>: ", 1)
    assert said["failures"] == []
    told = parsed(chunks, raw=raw)  # without the span the marker opens a block that holds no call
    assert [(each["kind"], each["index"], each["recovered"]) for each in told["failures"]] == [("invalid_json", None, False)]


def test_the_prompt_s_tail_alone_decides_whether_the_thought_is_open() -> None:
    assert parsed(raw="hm</think>Hi", prompt_tail="<think>\n")["reasoning"] == "hm"
    assert parsed(raw="hm</think>Hi")["reasoning"] is None


def test_the_text_of_a_call_that_the_limit_cut_is_content() -> None:
    cut = parsed("char", raw=CALL[:40], finish_reason="length")
    assert (cut["content"], cut["tool_calls"], cut["finish_reason"]) == (CALL[:40], [], "length")
    assert [each["kind"] for each in cut["failures"]] == ["truncated_call"]


def test_tools_are_objects_of_a_chat_request_or_bare_functions() -> None:
    assert parsed(raw=CALL, tools=[{"name": "f"}])["failures"] == []
    assert [each["kind"] for each in parsed(raw=CALL, tools=[])["failures"]] == ["unknown_tool"]
    assert parsed(raw=CALL, tools=None) == parsed(raw=CALL)
    assert [tool.name for tool in read_tools(b'[{"name": "f"}]')] == ["f"]


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}},
        {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}},
        {"name": "f", "description": "Does it.", "input_schema": {"properties": {"a": {"type": "string"}}}},
    ],
)
def test_the_schema_is_read_wherever_a_tool_has_it(tool: dict[str, Any]) -> None:
    raw = "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
    assert parsed(format="qwen3_coder", raw=raw, tools=[tool])["tool_calls"][0]["arguments"] == '{"a": "5"}'


@pytest.mark.parametrize("chunks", ["one", "char", "random:5"])
@pytest.mark.parametrize("spans", [None, [[0, 1]]])
def test_places_are_counted_in_code_points(chunks: str, spans: list[list[int]] | None) -> None:
    before = "🦙🦙é "
    told = parsed(chunks, raw=f"{before}<tool_call>{{x}}</tool_call>", literal_spans=spans)
    assert [(each["kind"], each["offset"]) for each in told["failures"]] == [("invalid_json", len(before) + len("<tool_call>{"))]


def test_only_the_markers_that_a_span_touches_are_text() -> None:
    raw = f"🦙<tool_call>{CALL}"  # the first is text, the second opens a call
    first = [[1, 12]]
    for spans in (first, [[11, 12]], [[0, 2]], [[12, 12], *first], [[0, 1], *first]):
        told = parsed(raw=raw, literal_spans=spans)
        assert (told["content"], len(told["tool_calls"]), told["failures"]) == ("🦙<tool_call>", 1, [])
    assert [each["kind"] for each in parsed(raw=raw, literal_spans=[[5, 5]])["failures"]] == ["invalid_json"]


@pytest.mark.parametrize(
    ("case", "param"),
    [
        ({"raw": "", "format": "nope"}, "format"),
        ({"raw": "", "format": None}, "format"),
        ({"raw": 1}, "raw"),
        ({"raw": "", "finish_reason": "eos"}, "finish_reason"),
        ({"raw": "", "literal_span": []}, "'literal_span'"),
        ({"raw": "ab", "literal_spans": [[1, 3]]}, "literal_spans"),
        ({"raw": "🦙b", "literal_spans": [[0, 3]]}, "literal_spans"),
        ({"raw": "ab", "literal_spans": [[2, 1]]}, "literal_spans"),
        ({"raw": "ab", "literal_spans": [[-1, 1]]}, "literal_spans"),
        ({"raw": "abcd", "literal_spans": [[2, 4], [0, 3]]}, "literal_spans"),
        ({"raw": "abcd", "literal_spans": [[0, "3"]]}, "literal_spans[0][1]"),
        ({"raw": "a\ud83d"}, "raw"),
        ({"raw": "", "prompt_tail": "\udd99"}, "prompt_tail"),
        ({"raw": "", "tools": [{"type": "function"}]}, "tools[0].name"),
    ],
)
def test_what_is_wrong_is_named(case: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**case)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["", "two", "random", "random:", "random:x", "random:-1", "random:²", "random:٣"])
def test_unknown_chunks_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="one, char, random:SEED"):
        chunking(name)


def test_a_seed_may_be_long() -> None:
    cut = chunking(f"random:{'9' * 5000}")
    assert "".join(cut(CALL)) == CALL
    assert list(cut(CALL)) == list(cut(CALL))


def test_a_file_that_holds_no_tools_is_refused() -> None:
    with pytest.raises(BadRequest, match="expected") as caught:
        read_tools(b"{}")
    assert caught.value.param == "tools"
