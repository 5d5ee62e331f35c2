"""Every family's table of outputs: complete, and read the same at once, by character, by token, in random splits, as text and as
ids, and cut anywhere."""

import itertools
import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support import formats as run

from gateway.formats import registry
from gateway.formats.codecs.brace_delimited import BraceDelimited
from gateway.formats.codecs.nested_xml import NestedXml
from gateway.formats.codecs.python_calls import PythonCalls
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.compiled import CompiledFormat
from gateway.formats.program import Program
from gateway.formats.spec import FormatSpec
from gateway.request import ContentText, FinishReason, ToolCallStart, ToolSpec

DATA = Path(__file__).parents[1] / "data" / "formats"
TOOLS = (
    ToolSpec(
        "look",
        None,
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "depth": {"type": "integer"},
                "note": {"type": ["string", "null"]},
                "more": {"type": "object"},
                "deep": {"$ref": "#/$defs/flags"},
            },
            "$defs": {"flags": {"type": "array", "items": {"type": "boolean"}}},
        },
    ),
    ToolSpec("noop"),
    ToolSpec(
        "types",
        None,
        {
            "properties": {
                "text": {"type": "string"},
                "whole": {"type": "integer"},
                "real": {"type": "number"},
                "yes": {"type": "boolean"},
                "no": {"type": "boolean"},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "perhaps": {"type": "integer", "nullable": True},
                "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                "other": {"type": ["string", "integer"]},
                "listed": {"enum": ["5", 6]},
            },
            "additionalProperties": False,
        },
    ),
)
FAMILIES: dict[str, Program] = {each.name: each.program for each in registry.load().values() if isinstance(each, CompiledFormat)}
TABLES = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.yaml"))}
ROWS = [pytest.param(name, row, id=f"{name}-{row['name']}") for name, rows in TABLES.items() for row in rows]
CLEAN = [
    pytest.param(name, row, id=f"{name}-{row['name']}")
    for name, rows in TABLES.items()
    for row in rows
    if not row.get("failures")
]
OF_CALLS = {
    *("single", "parallel", "nested", "empty arguments", "Unicode and escapes", "code", "own marker in a string"),
    *("text before and after", "cut call", "unknown tool", "invalid value", "double encoding"),
}
OF_THOUGHTS = {"call quoted in a thought", "unclosed thought", "cut thought"}
NOT_DOUBLE = {
    Tagged: "no text holds all arguments",
    NestedXml: "no text holds all arguments",
    BraceDelimited: "a string in the place of the arguments has no spelling",
    PythonCalls: "arguments are keywords",
}  # and why
SPLITS = int(os.environ.get("FORMAT_SPLITS", "3"))  # `make splits` takes 200
CUTS = 10 * SPLITS


def _case(row: dict[str, Any]) -> run.Case:
    return run.Case(row["raw"], TOOLS, row.get("prompt_tail", ""), row.get("reason", "stop"), hold=True)


def _expected(row: dict[str, Any]) -> run.Folded:
    calls = tuple((name, arguments) for name, arguments in row.get("calls", ()))
    failures = tuple((kind, recovered) for kind, recovered in row.get("failures", ()))
    finish = "length" if row.get("reason") == "length" else "tool_calls" if calls else "stop"
    return run.Folded(row.get("reasoning", ""), row.get("content", ""), calls, failures, finish)


def test_every_family_has_a_table_and_no_name_is_used_twice() -> None:
    assert set(TABLES) == set(FAMILIES)
    for rows in TABLES.values():
        assert len({row["name"] for row in rows}) == len(rows)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_table_has_a_row_of_every_category(name: str) -> None:
    program = FAMILIES[name]
    found = set().union(*(_categories(program, row) for row in TABLES[name]))
    assert (OF_CALLS | OF_THOUGHTS) - found == _impossible(program.spec)


def _impossible(spec: FormatSpec) -> set[str]:
    """The categories that this family's syntax has no example of."""
    calls, thinks = bool(spec.blocks or spec.headers), bool(spec.reasoning or spec.headers)
    double = spec.headers or any(type(each.codec) not in NOT_DOUBLE or getattr(each.codec, "json", None) for each in spec.blocks)
    without_calls = set() if calls else OF_CALLS | {"call quoted in a thought"}
    return without_calls | (set() if thinks else OF_THOUGHTS) | (set() if double else {"double encoding"})


def _categories(program: Program, row: dict[str, Any]) -> set[str]:
    """What a row is an example of, told by what it means, never by its name."""
    failures = {(kind, recovered) for kind, recovered in row.get("failures", ())}
    arguments = [json.loads(text) for _, text in row.get("calls", ())]
    strings = [each for each in _parts(arguments) if isinstance(each, str)]
    content, thought, cut = row.get("content", ""), row.get("reasoning", ""), row.get("reason") == "length"
    openers, closers = _ends(program.spec)
    clean, typed_late = not failures, all(type(block.codec) in (Tagged, NestedXml) for block in program.spec.blocks)
    unread = ("schema_mismatch", True) if typed_late and program.spec.blocks else ("invalid_json", False)
    checks = {
        "single": clean and len(arguments) == 1 and arguments[0] and not content,
        "parallel": clean and len(arguments) > 1,
        "nested": clean and any(_depth(each) > 2 for each in arguments),
        "empty arguments": clean and {} in arguments,
        "Unicode and escapes": clean and any("\U0001f600" in each and '"' in each and "\\" in each for each in strings),
        "code": clean and any("{" in each and re.search("</?[a-z]+>", each) for each in strings),
        "own marker in a string": clean and any(closer in each for each in strings for closer in closers),
        "text before and after": clean and _has_text_around_calls(program, row),
        "cut call": cut and ("truncated_call", False) in failures,
        "unknown tool": arguments and ("unknown_tool", True) in failures,
        "invalid value": unread in failures and bool(strings if typed_late and program.spec.blocks else content),
        "double encoding": arguments and ("double_encoded", True) in failures,
        "call quoted in a thought": not arguments and any(opener in thought for opener in openers),
        "unclosed thought": thought and not (arguments or content or cut) and _is_unclosed(program.spec, row["raw"]),
        "cut thought": cut and ("truncated_reasoning", True) in failures,
    }
    return {category for category, holds in checks.items() if holds}


def _parts(value: Any) -> Iterator[Any]:
    yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(part)


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def _ends(spec: FormatSpec) -> tuple[set[str], set[str]]:
    """The texts that begin a call, and those that end one, or a value in it; where nothing does, the opener stands for it."""
    if spec.headers is not None:
        return {spec.headers.channel.text}, {marker.text for marker in spec.headers.ends}
    openers, closers = {block.opener.text for block in spec.blocks}, set()
    for block in spec.blocks:
        closers.add(block.codec.value_close if isinstance(block.codec, Tagged) else (block.closer or block.opener).text)
    return openers, closers


def _sure_openers(spec: FormatSpec) -> set[str]:
    """Those that are never text where they stand for themselves."""
    return _ends(spec)[0] - {block.opener.text for block in spec.blocks if block.told}


def _is_unclosed(spec: FormatSpec, raw: str) -> bool:
    ends = spec.headers.ends if spec.headers else (spec.reasoning.closer,) if spec.reasoning else ()
    return not any(end.text in raw for end in ends)


def _has_text_around_calls(program: Program, row: dict[str, Any]) -> bool:
    """Whether the row's content is text on both sides of its calls."""
    said = [delta for delta in run.parse(program, _case(row)) if not isinstance(delta, ContentText) or delta.text.strip()]
    kinds = [
        "call" if isinstance(delta, ToolCallStart) else "text" for delta in said if isinstance(delta, ContentText | ToolCallStart)
    ]
    return "call" in kinds and kinds[0] == kinds[-1] == "text"


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_what_it_means(name: str, row: dict[str, Any]) -> None:
    assert run.fold(run.parse(FAMILIES[name], _case(row))) == _expected(row)


@pytest.mark.no_cover  # many parses of outputs whose code the others run
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_the_same_in_every_split(name: str, row: dict[str, Any]) -> None:
    for case in (_case(row), replace(_case(row), hold=False)):
        whole = run.parse(FAMILIES[name], case)
        assert run.parse(FAMILIES[name], case, run.by_characters(case.raw)) == whole
        assert run.parse(FAMILIES[name], case, run.by_cuts(case.raw, range(0, len(case.raw), 4))) == whole
        for seed in range(SPLITS):
            assert run.parse(FAMILIES[name], case, run.at_random(case.raw, seed)) == whole


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_the_same_with_ids(name: str, row: dict[str, Any]) -> None:
    program, case = FAMILIES[name], _case(row)
    ids = run.marker_ids(program.spec)
    whole = run.parse(program, case)
    for size in (1, 3, 50):
        tokens = run.tokens_of(case.raw, ids, size)
        for at_once in (True, False):
            assert run.parse_tokens(program, case, tokens, ids, at_once=at_once) == whole
    hidden = [(token, "" if token in ids.values() else text) for token, text in run.tokens_of(case.raw, ids)]
    assert run.parse_tokens(program, case, hidden, ids, at_once=False) == whole


def _cuts(size: int) -> Sequence[int]:
    """Where an output of this size is cut: some places of a long one, all of them in `make splits`."""
    places = range(size)
    return places if size <= CUTS else sorted(random.Random(size).sample(places, CUTS))


@pytest.mark.no_cover  # likewise
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_cut_by_the_limit_anywhere(name: str, row: dict[str, Any]) -> None:
    """No call is invented or shortened, nothing is lost, and held back or not the same calls are whole."""
    case = _case(row)
    known = _expected(row).calls
    for cut in _cuts(len(case.raw)):
        for hold in (True, False):
            short = replace(case, raw=case.raw[:cut], reason="length", hold=hold)
            deltas, spans = run.accounted(FAMILIES[name], short, [short.raw])
            found = run.fold(deltas)
            assert found.finish == "length"
            if ("implicit_reasoning_end", True) not in found.failures:  # a quoted call is told by the thought's closer
                assert found.calls == known[: len(found.calls)]
            if hold:
                assert "failure" not in {kind for _, kind in spans}
                assert all(text in found.content for text, kind in spans if kind == "content")


@pytest.mark.no_cover  # likewise
@pytest.mark.parametrize(("name", "row"), CLEAN)
def test_what_the_limit_cut_after_any_token_is_counted_by_its_kind(name: str, row: dict[str, Any]) -> None:
    program, case = FAMILIES[name], _case(row)
    ids, openers, thinks = run.marker_ids(program.spec), _sure_openers(program.spec), program.spec.reasoning
    tokens = run.tokens_of(case.raw, ids, 6)
    for count in _cuts(len(tokens)):
        short = replace(case, raw="".join(text for _, text in tokens[:count]), reason="length")
        deltas = run.parse_tokens(program, short, tokens[:count], ids, at_once=False)
        assert run.parse(program, short) == deltas
        found = run.fold(deltas)
        if any(opener in found.content for opener in openers):
            assert ("truncated_call", False) in found.failures
        thinking = thinks is not None and thinks.start(short.prompt_tail + short.raw)[0] == "inside"
        if thinking and not (found.content or found.calls):
            assert ("truncated_reasoning", True) in found.failures


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_thought_that_no_marker_tells_is_content(name: str) -> None:
    """Mixed reasoning is never split by what it says."""
    spec = FAMILIES[name].spec
    raw = "Okay, the user wants a list. Let me think step by step.\n\nThought: three.\n---\n**Final answer:** one, two, three"
    found = run.fold(run.parse(FAMILIES[name], run.Case(raw, TOOLS)))
    failures = (("bad_header", True),) if spec.headers else ()
    assert found == run.Folded("", raw, (), failures, "stop")
    if spec.reasoning is not None:
        ended = run.fold(run.parse(FAMILIES[name], run.Case(f"{raw}{spec.reasoning.closer.text}Hi", TOOLS)))
        assert ended.reasoning == ""
        assert ended.content.startswith(raw)
        assert ended.content.endswith("Hi")


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_streamed_answer_is_the_whole_one_but_for_calls_that_were_begun(name: str) -> None:
    for row, reason in itertools.product(TABLES[name], get_args(FinishReason)):
        held = run.fold(run.parse(FAMILIES[name], replace(_case(row), reason=reason)))
        streamed = run.fold(run.parse(FAMILIES[name], replace(_case(row), reason=reason, hold=False)))
        if "truncated_call" in {kind for kind, _ in streamed.failures}:
            assert held.content.startswith(streamed.content)
            streamed = replace(streamed, content=held.content)
        assert streamed == held
