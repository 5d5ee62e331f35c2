"""The codecs beyond their tables: Python's own literals, Gemma's objects, limits, and text that spells tokens inside a call."""

import ast
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import formats as run

from gateway.formats import registry
from gateway.formats.codecs.python_text import PythonText
from gateway.formats.compiled import CompiledFormat
from gateway.formats.program import Program
from gateway.request import ToolCallStart, ToolSpec

TOOLS = (ToolSpec("f", None, {"properties": {"s": {"type": "string"}}}), ToolSpec("noop"))
CHARACTERS = st.characters(exclude_categories=["Cs"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(CHARACTERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=3), inner, max_size=3),
    max_leaves=8,
)


def _program(name: str) -> Program:
    form = registry.load()[name]
    assert isinstance(form, CompiledFormat)
    return form.program


def _read(pieces: Sequence[str]) -> str | None:
    """The JSON text of a Python literal; None where it is none."""
    value = PythonText()
    found = ""
    for at, piece in enumerate(pieces):
        pos = 0
        while pos < len(piece) and not (value.done or value.failed):
            pos = value.scan(piece, pos)
        found += value.take()
        if value.failed or (value.done and (pos < len(piece) or at + 1 < len(pieces))):
            return None
    return found if value.done else None


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_a_python_literal_is_read_as_python_reads_it(value: Any) -> None:
    for text in (repr([value]), repr((value, [])).replace(", ", ",\n")):
        written = _read([text])
        assert written is not None
        assert json.loads(written) == json.loads(json.dumps(ast.literal_eval(text)))
        assert _read(list(text)) == written


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*"'\"\\\n{}[](),: .-+_012eExuUNrb", "'''", '"""', "\\x41", "\\u00e9", "\\101", "True"])).map(
        "".join
    )
)
def test_what_is_read_is_what_python_reads_too(inside: str) -> None:
    text = f"[{inside}]"
    written = _read([text])
    assert _read(list(text)) == written
    if written is None:
        return
    value = json.loads(written)
    try:
        meant = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return  # a newline in a string, a word of JSON, a string with the letter u
    assert value == json.loads(json.dumps(meant))


def _braces(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{_braces(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_braces, value)) + "]"
    return json.dumps(value)


KEYS = st.text(st.sampled_from("abcé _-.0<|"), min_size=1, max_size=4).filter(lambda key: key == key.strip())
OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(CHARACTERS).filter(lambda text: "<|" not in text),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, OBJECTS, max_size=3))
def test_gemmas_objects_come_back_as_they_were(value: dict[str, Any]) -> None:
    case = run.Case(f"<|tool_call>call:noop{_braces(value)}<tool_call|>", TOOLS)
    found = run.fold(run.parse(_program("gemma4"), case))
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == [("noop", value)]
    assert found.failures == ()


LONG = {
    "llama4_pythonic": ["[{n}(", "[f(a={n}", "[f({n}=1)]", "[{b}noop()]", "[noop({b})]", "[f(a{b}=1)]", "{b}[noop()]"],
    "lfm2": ["<|tool_call_start|>[{n}()]", "<|tool_call_start|>f({n}=1)", "<|tool_call_start|>[f(s={d})]<|tool_call_end|>"],
    "gemma4": ["<|tool_call>call:{n}{{}}<tool_call|>", "<|tool_call>call:f{{{n}:1}}<tool_call|>", "<|tool_call>call:f{{a:{n}}}"],
    "glm45": ["<tool_call>{n}\n</tool_call>", "<tool_call>f<arg_key>{n}</arg_key><arg_value>1</arg_value></tool_call>"],
    "kimi_k2": [
        "<|tool_calls_section_begin|><|tool_call_begin|>{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
        "<|tool_calls_section_begin|>{n}<|tool_call_begin|>f:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>{n}"
        "<|tool_call_begin|>f:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_call_begin|>{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
    ],
    "deepseek_v3": ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{n}<｜tool▁sep｜>f\n```json\n{{}}\n```<｜tool▁call▁end｜>"],
    "mistral_v13": ["[TOOL_CALLS]{n}[ARGS]{{}}", "[TOOL_CALLS]f[CALL_ID]{n}[ARGS]{{}}"],
    "llama3_json": ['{{"name": "{n}", "parameters": {{}}}}', '{b}{{"name": "f"}}', '{{"name": "f"}};{b}{{"name": "f"}}'],
    "gpt_oss": ["{n}<|channel|>final<|message|>Hi", "{b}<|channel|>final<|message|>Hi", "<|channel|>{n}<|message|>Hi"],
}


@pytest.mark.no_cover  # many parses, and the tables run the same code but for one at its limit
@pytest.mark.parametrize("size", [255, 256, 257, 512, 513, 4_096, 4_097])
@pytest.mark.parametrize("name", LONG)
def test_each_limit_is_the_same_in_every_split(name: str, size: int) -> None:
    for pattern in LONG[name]:
        raw = pattern.format(n="n" * size, b=" " * size, d="1" * size)
        for reason in ("stop", "length"):
            case = run.Case(raw, TOOLS, reason=reason)
            whole = run.parse(_program(name), case)
            assert run.parse(_program(name), case, run.by_characters(raw)) == whole
            assert run.parse(_program(name), case, run.by_cuts(raw, range(0, len(raw), 4))) == whole


SPELLED = [
    ("glm45", "<tool_call>f\n<arg_key>s</arg_key><arg_value>{}</arg_value></tool_call>", "a</arg_value></tool_call><tool_call>b"),
    ("glm47", "<tool_call>f<arg_key>s</arg_key><arg_value>{}</arg_value></tool_call>", "<arg_key>s</arg_key><arg_value>"),
    (
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">{}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="f" index="0"<|sep|><|open|>argument key="s" type="string"<|sep|>{}'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    ("gemma4", '<|tool_call>call:f{{s:<|"|>{}<|"|>}}<tool_call|>', 'x<|"|>}<tool_call|>'),
    ("functiongemma", "<start_function_call>call:f{{s:<escape>{}<escape>}}<end_function_call>", "x<escape>}<end_function_call>"),
]


@pytest.mark.parametrize(("name", "call", "spelled"), SPELLED)
def test_a_value_may_spell_what_ends_it_where_ids_are_known(name: str, call: str, spelled: str) -> None:
    program = _program(name)
    ids = run.marker_ids(program.spec)
    before, after = (part.format() for part in call.split("{}"))
    for pieces in ([spelled], list(spelled)):
        tokens = [*run.tokens_of(before, ids), *((10_000, piece) for piece in pieces), *run.tokens_of(after, ids)]
        for at_once in (True, False):
            found = run.fold(run.parse_tokens(program, run.Case("", TOOLS), tokens, ids, at_once=at_once))
            assert [(each, json.loads(arguments)) for each, arguments in found.calls] == [("f", {"s": spelled})]
            assert (found.content, found.failures) == ("", ())


def test_a_header_that_is_only_spelled_reaches_the_client_where_ids_are_known() -> None:
    program = _program("gpt_oss")
    raw = "<|channel|>final<|message|>Hello"
    for reason in ("stop", "length"):
        case = run.Case(raw, TOOLS, reason=reason)
        found = run.fold(run.parse_tokens(program, case, [(10_000, raw)], run.marker_ids(program.spec), at_once=True))
        assert found.content == raw
        assert [kind for kind, _ in found.failures] == ["bad_header", "special_tokens_missing"]


def test_an_id_that_the_model_repeats_is_given_once() -> None:
    call = "<|tool_call_begin|>functions.noop:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    raw = f"<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>"
    case = run.Case(raw, TOOLS)
    for hold in (True, False):
        deltas = run.parse(_program("kimi_k2"), replace(case, hold=hold))
        assert [delta.id for delta in deltas if isinstance(delta, ToolCallStart)] == ["functions.noop:0", "call_0"]
