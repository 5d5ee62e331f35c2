"""The invariants of every format, over random outputs made of markers, halves of markers, calls, JSON and text."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support import formats as run

from gateway.formats import registry
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.compiled import CompiledFormat
from gateway.request import (
    ContentText,
    Finish,
    ParseFailure,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
)

pytestmark = pytest.mark.no_cover  # what random outputs run differs from day to day, and the tables run the same code
TOOLS = (
    ToolSpec(
        "look",
        None,
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "depth": {"type": "integer"},
                "ratio": {"type": ["number", "null"]},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "integer"}]},
                "more": {"type": "object"},
                "deep": {"$ref": "#/$defs/d"},
            },
            "$defs": {"d": {"type": "array", "items": {"type": "boolean"}}},
        },
    ),
    ToolSpec("noop"),
)
FORMATS = sorted({each.name: each for each in registry.load().values()}.items())
FORMATS_BY_NAME = {name: each for name, each in FORMATS if isinstance(each, CompiledFormat)}
CASES = [pytest.param(each, id=name) for name, each in FORMATS_BY_NAME.items()]
EXAMPLES = int(os.environ.get("FORMAT_EXAMPLES", "25"))
WORDS = [
    "look",
    "noop",
    " word",
    "é😀",
    "\n",
    "\n\n",
    " ",
    "\t",
    '"',
    "\\",
    "\\u00e9",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "7",
    "-0.5e3",
]
WORDS += [
    "01",
    "null",
    "true",
    "True",
    "path",
    "depth",
    '{"a": [1, {"b": "x"}]}',
    '"path"',
    "\x01",
    "<",
    "</",
    ">",
    "=",
    "\ud800",
]
DATA = Path(__file__).parents[1] / "data" / "formats"


def _tails(each: CompiledFormat) -> list[str]:
    """The ends of prompts that matter to this family."""
    spec = each.program.spec
    if spec.headers is not None:
        start, channel, body = spec.headers.start.text, spec.headers.channel.text, spec.headers.body.text
        begun = [f"{start}assistant{channel}{said}{body}" for said in (*spec.headers.thoughts, *spec.headers.content)]
        return ["", f"{start}assistant", f"{start}assistant to={spec.headers.functions}look", *begun]
    if spec.reasoning is None:
        return ["<turn>"]
    opened = f"<turn>{spec.reasoning.opener.text}\n"
    return ["<turn>", opened, f"{opened}\n{spec.reasoning.closer.text}\n\n"]


def _outputs(each: CompiledFormat) -> st.SearchStrategy[str]:
    """Pieces of this family's table, its markers, halves of them, and words."""
    spec = each.program.spec
    markers = [*(marker.text for marker in spec.markers), *spec.tokens]
    halves = [marker[: len(marker) // 2] for marker in markers] + [marker[len(marker) // 2 :] for marker in markers]
    rows = [row["raw"] for row in yaml.safe_load((DATA / f"{each.name}.yaml").read_text(encoding="utf-8"))]
    whole = st.sampled_from(rows)
    begun = st.tuples(whole, st.integers(1, 80)).map(lambda cut: cut[0][: cut[1]])
    ended = st.tuples(whole, st.integers(1, 80)).map(lambda cut: cut[0][-cut[1] :])
    parts = [st.sampled_from(WORDS), st.text(max_size=4), whole, begun, ended]
    parts += [st.sampled_from(some) for some in (markers, halves) if some]
    mixed = st.lists(st.one_of(parts), max_size=14)
    likely = st.tuples(st.sampled_from(WORDS), whole, st.sampled_from(WORDS), whole, begun)
    return st.one_of(mixed, likely, st.tuples(whole, begun)).map("".join)


def _cases(each: CompiledFormat) -> st.SearchStrategy[run.Case]:
    return st.builds(
        run.Case,
        raw=_outputs(each),
        tools=st.sampled_from([TOOLS, ()]),
        prompt_tail=st.sampled_from(_tails(each)),
        reason=st.sampled_from(["stop", "length"]),
        hold=st.booleans(),
    )


@pytest.mark.parametrize("each", CASES)
def test_any_split_gives_the_same_deltas(each: CompiledFormat) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each), st.lists(st.integers(0, 200), max_size=8))
    def check(case: run.Case, cuts: list[int]) -> None:
        # A small cap on held text, so that it is reached too.
        for program in (each.program, replace(each.program, held_chars=40)):
            whole = run.parse(program, case)
            for pieces in (run.by_characters(case.raw), run.by_cuts(case.raw, cuts), run.by_cuts(case.raw, range(0, 500, 4))):
                assert run.parse(program, case, pieces) == whole

    check()


@pytest.mark.parametrize("each", CASES)
def test_tokens_give_the_same_deltas_as_text(each: CompiledFormat) -> None:
    ids = run.marker_ids(each.program.spec)

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each), st.integers(1, 6))
    def check(case: run.Case, size: int) -> None:
        whole = run.parse(each.program, case)
        kinds = {delta.kind for delta in whole if isinstance(delta, ParseFailure)}
        if Tagged in _codecs(each) and kinds & {"missing_closer", "truncated_call"}:
            return  # a tag that is only text may end a value without the block's closer; where that is an id it may not
        tokens = run.tokens_of(case.raw, ids, size)
        assert run.parse_tokens(each.program, case, tokens, ids, at_once=False) == whole
        assert run.parse_tokens(each.program, case, tokens, ids, at_once=True) == whole

    check()


@pytest.mark.parametrize("each", CASES)
def test_a_text_that_spells_markers_is_data_where_ids_are_known(each: CompiledFormat) -> None:
    spec = each.program.spec
    ids = run.marker_ids(spec)
    bare = [text for block in spec.blocks for text in (*block.codec.bare_openers, block.starter) if text]
    texts = [*(marker.text for marker in spec.markers), *bare]
    spelled = [text for text in texts if any(token in text for token in ids)]
    other = [text for text in texts if text not in spelled]

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each))
    def check(case: run.Case) -> None:
        case = replace(case, prompt_tail=_tails(each)[0])
        tokens = [(10_000, character) for character in case.raw]
        found = run.fold(run.parse_tokens(each.program, case, tokens, ids, at_once=False))
        if not any(text in case.raw for text in other):
            blank = spec.headers is not None and not case.raw.strip(" \t\n\r")  # before a header it is markup
            assert blank or found.content == case.raw
            kinds = {kind for kind, _ in found.failures} - ({"bad_header"} if spec.headers else set())
            assert kinds <= {"special_tokens_missing"}
            assert bool(kinds) <= any(text in case.raw for text in spelled)

    check()


@pytest.mark.parametrize("each", CASES)
def test_every_character_is_accounted_for(each: CompiledFormat) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each))
    def check(case: run.Case) -> None:
        deltas, spans = run.accounted(each.program, case, run.by_cuts(case.raw, range(0, 500, 5)))
        text = {kind: "".join(text for text, its in spans if its == kind) for kind in ("reasoning", "content", "failure")}
        assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningText)) == text["reasoning"]
        assert "".join(delta.text for delta in deltas if isinstance(delta, ContentText)) == text["content"]
        failures = [delta for delta in deltas if isinstance(delta, ParseFailure)]
        if text["failure"]:  # a call that was cut after the client had deltas of it
            assert not case.hold
            assert any(delta.kind == "truncated_call" and not delta.recovered for delta in failures)
        lost = [delta for delta in failures if delta.index is not None and not delta.recovered]
        asides = {delta.kind for delta in failures} & {"bad_header", "duplicate_key"}  # content in the middle of a call
        if not (lost or asides) and each.name in ("hermes", "qwen3_coder"):
            _check_markup(each, spans)

    check()


@pytest.mark.parametrize("each", CASES)
def test_words_put_anywhere_reach_the_client(each: CompiledFormat) -> None:
    """But for those among a tag's attributes, which are markup with their tag."""
    rows = yaml.safe_load((DATA / f"{each.name}.yaml").read_text(encoding="utf-8"))
    for raw in (row["raw"] for row in rows if row["name"] in ("single", "parallel")):
        attributes = [found.span() for found in re.finditer(r'\w* ?(?: ?\w+="[^"]*")+', raw)]
        for at in range(len(raw)):
            if any(start <= at <= end for start, end in attributes):
                continue
            found = run.fold(run.parse(each.program, run.Case(f"{raw[:at]} two words {raw[at:]}", TOOLS)))
            told = "\n".join((found.reasoning, found.content, *(text for call in found.calls for text in call)))
            assert "two words" in told, raw[:at]


def _check_markup(each: CompiledFormat, spans: Sequence[tuple[str, str]]) -> None:
    """Nothing but markers, whitespace and the codec's own syntax is markup."""
    whole = "".join({"markup": text, "arguments": "\0"}.get(kind, "\1") for text, kind in spans)
    for marker in each.program.spec.markers:
        whole = whole.replace(marker.text, "\n")
    for part in re.split("[\1]", whole):
        if "<function=" in part:
            rest = re.sub(r"<function=[^<>\n]+>|<parameter=[^<>\n]+>|</parameter>|</function>|\0", "", part)
            assert not rest.strip(), (part, spans)
            continue
        rest = part.replace("\0", "0").strip()
        while rest:
            wrapper, end = json.JSONDecoder().raw_decode(rest)
            assert "name" in wrapper, (part, spans)
            rest = rest[end:].strip()


@pytest.mark.parametrize("each", CASES)
def test_held_back_or_not_the_whole_answer_is_the_same(each: CompiledFormat) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each))
    def check(case: run.Case) -> None:
        held = run.fold(run.parse(each.program, replace(case, hold=True)))
        streamed = run.fold(run.parse(each.program, replace(case, hold=False)))
        if ("truncated_call", False) in held.failures:  # its text is not sent again where its deltas were sent
            assert held.content.startswith(streamed.content)
            streamed = replace(streamed, content=held.content)
        assert replace(streamed, failures=()) == replace(held, failures=())
        assert sorted(streamed.failures) == sorted(held.failures)

    check()


@pytest.mark.parametrize("each", CASES)
def test_calls_are_whole_and_the_end_comes_once(each: CompiledFormat) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each))
    def check(case: run.Case) -> None:
        deltas = run.parse(each.program, case)
        assert [type(delta) for delta in deltas].count(Finish) == 1
        folded = run.fold(deltas)
        assert "internal" not in {kind for kind, _ in folded.failures}
        for _, arguments in folded.calls:
            assert isinstance(json.loads(arguments), dict)
        starts = [delta for delta in deltas if isinstance(delta, ToolCallStart)]
        assert [delta.index for delta in starts] == list(range(len(starts)))
        assert len({delta.id for delta in starts}) == len(starts)
        ended = [delta.index for delta in deltas if isinstance(delta, ToolCallEnd)]
        assert len(set(ended)) == len(ended)
        if case.hold:
            assert ended == list(range(len(starts)))
        for index in {delta.index for delta in starts} - set(ended):
            assert any(isinstance(delta, ParseFailure) and delta.index == index and not delta.recovered for delta in deltas)
        assert folded.finish == ("length" if case.reason == "length" else "tool_calls" if ended else "stop")

    check()


def _codecs(each: CompiledFormat) -> set[type]:
    return {type(block.codec) for block in each.program.spec.blocks} or {JsonInWrapper}


@pytest.mark.parametrize(
    "each", [pytest.param(each, id=name) for name, each in FORMATS_BY_NAME.items() if _codecs(each) <= {JsonInWrapper, NamedJson}]
)
def test_a_json_call_reaches_the_client_as_it_was_written(each: CompiledFormat) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(_cases(each))
    def check(case: run.Case) -> None:
        deltas, spans = run.accounted(each.program, case, [case.raw])
        kinds = {delta.kind for delta in deltas if isinstance(delta, ParseFailure)}
        unchanged = not kinds & {
            "double_encoded",
            "not_an_object",
            "value_too_large",
            "invalid_json",
            "unterminated_call",
            "truncated_call",
        }
        given_text = "".join(delta.text for delta in deltas if isinstance(delta, ToolCallArguments) and delta.text != "{}")
        written = "".join(text for text, kind in spans if kind == "arguments" and text != "{}")
        if unchanged:
            assert given_text == written

    check()
