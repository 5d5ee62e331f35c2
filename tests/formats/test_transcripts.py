"""Every family's table of outputs: at once, by character, by token, in random splits, as text and as ids, and cut anywhere."""

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support import formats as run

from gateway.formats import registry
from gateway.formats.compiled import CompiledFormat
from gateway.formats.program import Program
from gateway.request import FinishReason, ToolSpec

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
SPLITS = int(os.environ.get("FORMAT_SPLITS", "3"))  # `make splits` takes 200


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


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_what_it_means(name: str, row: dict[str, Any]) -> None:
    assert run.fold(run.parse(FAMILIES[name], _case(row))) == _expected(row)


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


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_cut_by_the_limit_anywhere(name: str, row: dict[str, Any]) -> None:
    """No call is invented or shortened, nothing is lost, and held back or not the same calls are whole."""
    case = _case(row)
    known = _expected(row).calls
    for cut in range(len(case.raw)):
        for hold in (True, False):
            short = replace(case, raw=case.raw[:cut], reason="length", hold=hold)
            deltas, spans = run.accounted(FAMILIES[name], short, [short.raw])
            found = run.fold(deltas)
            assert found.finish == "length"
            if ("implicit_reasoning_end", True) not in found.failures:  # a quoted call is told by the thought's closer
                assert found.calls == known[: len(found.calls)]
            if hold:
                lost = "".join(text for text, kind in spans if kind == "failure")
                assert not lost or ("bad_header", False) in found.failures  # between two calls
                assert all(text in found.content for text, kind in spans if kind == "content")


def test_the_streamed_answer_is_the_whole_one_but_for_calls_that_were_begun() -> None:
    for name, rows in TABLES.items():
        for row, reason in itertools.product(rows, get_args(FinishReason)):
            held = run.fold(run.parse(FAMILIES[name], replace(_case(row), reason=reason)))
            streamed = run.fold(run.parse(FAMILIES[name], replace(_case(row), reason=reason, hold=False)))
            if "truncated_call" in {kind for kind, _ in streamed.failures}:
                assert held.content.startswith(streamed.content)
                streamed = replace(streamed, content=held.content)
            assert streamed == held
