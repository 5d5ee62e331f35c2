"""The machine with made-up families: what the first families do not use yet, limits, and faults."""

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import formats as run

from gateway.formats import registry
from gateway.formats.base import CallSyntax, ParseOptions
from gateway.formats.calls import Calls, merged, nine_alnum
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.compiled import CompiledFormat, compile_format
from gateway.formats.cursor import Cursor
from gateway.formats.families import hermes, k2_horizon, mistral_v13, qwen3_coder
from gateway.formats.machine import Machine
from gateway.formats.spec import Block, FormatSpec, Marker, Progress, Reasoning
from gateway.request import ContentText, Finish, ParseFailure, ReasoningText, ToolCallEnd, ToolCallStart, ToolSpec, Usage

TOOLS = (
    ToolSpec("f", None, {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": ["string", "object"]}}}),
)
ARRAY = FormatSpec(
    name="array",
    blocks=(
        Block(Marker("[CALLS]", token=True), None, JsonInWrapper(array=True)),
        Block(Marker("<calls>"), Marker("</calls>"), JsonInWrapper(array=True)),
        Block(Marker("[ONE]"), None, JsonInWrapper(id_key="call_id")),
    ),
    transparent=(Marker("<answer>"), Marker("</answer>")),
    call_ids="native",
)
HERMES, CODER = run.program(hermes.FORMAT), run.program(qwen3_coder.FORMAT)


def _found(spec: FormatSpec, raw: str, **more: object) -> run.Folded:
    case = replace(run.Case(raw, TOOLS, hold=True), **more)  # type: ignore[arg-type]  # a case's own fields
    program = run.program(spec)
    whole = run.parse(program, case)
    assert run.parse(program, case, run.by_characters(raw)) == whole
    _, spans = run.accounted(program, case, [raw])
    assert "".join(text for text, _ in spans) == raw
    return run.fold(whole)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            '[CALLS] [{"name": "f", "arguments": {"n": 1}}, {"name": "f"} ] ok',
            run.Folded("", " ok", (("f", '{"n": 1}'), ("f", "{}")), (), "tool_calls"),
        ),
        ("[CALLS][]x", run.Folded("", "x", (), (), "stop")),
        ("<calls>[ ] </calls>\nx", run.Folded("", "x", (), (), "stop")),
        ('<calls>[{"name": "f"}]</calls>', run.Folded("", "", (("f", "{}"),), (), "tool_calls")),
        ('<calls>[{"name": "f"}]x', run.Folded("", "x", (("f", "{}"),), (("missing_closer", True),), "tool_calls")),
        (
            '<calls>[{"name": "f"}, {"name": 1}]</calls>x',
            run.Folded("", ', {"name": 1}]</calls>x', (("f", "{}"),), (("missing_name", False),), "tool_calls"),
        ),
        ("[CALLS]{} <answer>", run.Folded("", "[CALLS]{} ", (), (("missing_name", False),), "stop")),
        ('[CALLS]{"name": "f"}.', run.Folded("", ".", (("f", "{}"),), (("bad_header", True),), "tool_calls")),
        ('[CALLS][{"name": "f"}', run.Folded("", "", (("f", "{}"),), (("unterminated_call", False),), "tool_calls")),
        ("<answer>\nHi\n</answer>\n", run.Folded("", "Hi\n", (), (), "stop")),
        ('[ONE]{"name": "f", "call_id": "x9"}.', run.Folded("", ".", (("f", "{}"),), (), "tool_calls")),
    ],
)
def test_arrays_blocks_without_closer_and_transparent_markers(raw: str, expected: run.Folded) -> None:
    assert _found(ARRAY, raw) == expected


def test_ids_follow_the_familys_policy() -> None:
    deltas = run.parse(run.program(ARRAY), run.Case('[ONE]{"call_id": "x9", "name": "f"}[ONE]{"call_id": 4, "name": "f"}', TOOLS))
    assert [delta.id for delta in deltas if isinstance(delta, ToolCallStart)] == ["x9", "call_0"]
    nine = run.program(replace(hermes.FORMAT, call_ids="nine_alnum"))
    deltas = run.parse(nine, run.Case('<tool_call>{"name": "f"}</tool_call>' * 2, TOOLS))
    ids = [delta.id for delta in deltas if isinstance(delta, ToolCallStart)]
    assert ids == [nine_alnum("call_0"), nine_alnum("call_1")]
    assert all(len(each) == 9 and each.isalnum() for each in ids)


def test_nine_letters_and_digits_that_the_model_wrote_are_the_calls_id() -> None:
    """Else the next prompt shows another id than the model wrote, and a cache ends there."""
    raw = "".join(f"[TOOL_CALLS]f[CALL_ID]{own}[ARGS]{{}}" for own in ("abc123XYZ", "abc123XYZ", "call_0", "größe1234"))
    deltas = run.parse(run.program(mistral_v13.FORMAT), run.Case(raw, TOOLS))
    ids = [delta.id for delta in deltas if isinstance(delta, ToolCallStart)]
    assert ids == ["abc123XYZ", *(nine_alnum(f"call_{number}") for number in range(3))]


@pytest.mark.parametrize(
    ("tail", "closer"),
    [
        ("", None),
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>\n", "</think>"),
        ("<|im_start|>assistant\n<think>Let me", "</think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
        ("<think>a</think>b<think>", "</think>"),
        ("</think>\n", None),
    ],
)
def test_a_format_says_what_closes_the_thought_that_a_template_opened(tail: str, closer: str | None) -> None:
    form = compile_format(hermes.FORMAT)
    assert form.open_thought(tail) == closer
    folded = run.fold(run.drain(form.parser(ParseOptions(prompt_tail=tail)), ["a</think>b"], "stop"))
    assert (folded.reasoning == "a") is (closer is not None)


@pytest.mark.parametrize(
    ("tail", "closer"),
    [
        ("<ifm|think>\n", "</ifm|think>"),
        ("<ifm|think_fast>\n", "</ifm|think_fast>"),
        ("<ifm|think>a</ifm|think>b<ifm|think_faster>", "</ifm|think_faster>"),
        ("<ifm|think_fast>\n</ifm|think_fast>", None),
        ("<ifm|think>\n</ifm|think_fast>", None),
    ],
)
def test_of_several_pairs_the_one_that_the_template_opened_closes(tail: str, closer: str | None) -> None:
    assert compile_format(k2_horizon.FORMAT).open_thought(tail) == closer


def test_a_format_without_thoughts_has_none_open() -> None:
    assert compile_format(ARRAY).open_thought("<think>") is None


def test_a_format_says_what_the_gateway_asks() -> None:
    form = compile_format(hermes.FORMAT)
    assert form.name == "hermes"
    assert "qwen25" in form.aliases
    assert form.visible == ("<think>", "</think>", "<tool_call>", "</tool_call>")
    assert form.call_syntax == CallSyntax("<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments")
    syntax = form.call_syntax
    raw = syntax.separator.join(f'{syntax.opener}{{"name": "f", "arguments": {{}}}}{syntax.closer}' for _ in range(2))
    deltas = run.drain(form.parser(ParseOptions(tools=TOOLS)), [raw], "stop")
    assert run.fold(deltas) == run.Folded("", "", (("f", "{}"), ("f", "{}")), (), "tool_calls")
    assert compile_format(qwen3_coder.FORMAT).call_syntax is None


def test_every_name_and_alias_finds_its_format_and_none_is_used_twice() -> None:
    formats = registry.load()
    assert formats["qwen3_xml"] is formats["qwen3_coder"]
    assert {"plain", "hermes", "qwen3_coder"} <= {each.name for each in formats.values()}
    with pytest.raises(ValueError, match="two formats are named 'qwen': hermes and other"):
        registry.by_name([hermes.FORMAT, FormatSpec(name="other", aliases=("qwen",))])


def test_a_family_in_a_few_lines() -> None:
    spec = FormatSpec(
        name="made_up",
        reasoning=Reasoning(Marker("[THINK]"), Marker("[/THINK]"), trim=""),
        blocks=(Block(Marker("{{"), Marker("}}"), Tagged("call ", ";", "end", "set ", ":", "|")),),
    )
    found = _found(spec, "[THINK]\nhm[/THINK]Hi {{call f;set s:a\nb|set n: 7|end}}")
    assert found == run.Folded("\nhm", "Hi ", (("f", '{"s": "a\\nb", "n": 7}'),), (), "tool_calls")


def test_a_marker_that_only_text_spells_is_counted_where_ids_are_known() -> None:
    case = run.Case('a <tool_call>{"name": "f"}</tool_call>', TOOLS)
    ids = run.marker_ids(hermes.FORMAT)
    found = run.parse_tokens(HERMES, case, [(99, case.raw)], ids, at_once=True)
    assert found[:2] == [ContentText(case.raw), ParseFailure("special_tokens_missing", None, 2, True)]
    without_tools = run.parse_tokens(HERMES, replace(case, tools=()), [(99, case.raw)], ids, at_once=True)
    assert without_tools[0] == ContentText(case.raw)
    assert len(without_tools) == 2


def test_a_token_may_carry_text_before_its_marker_and_foreign_ids_mean_nothing() -> None:
    parser = Machine(HERMES, ParseOptions(tools=TOOLS, marker_ids={"<tool_call>": 1, "</tool_call>": 2, "<|im_end|>": 3}))
    deltas = parser.feed_tokens([(9, "a"), (1, "é<tool_call>"), (9, '{"name": "f"}'), (2, "</tool_call>"), (3, "")])
    found = run.fold(merged([*deltas, *parser.finish("stop", Usage())]))
    assert (found.content, found.calls) == ("aé", (("f", "{}"),))


QUOTED = "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>"


def test_a_whole_call_quoted_in_a_value_is_data_where_ids_are_known() -> None:
    ids = run.marker_ids(qwen3_coder.FORMAT)
    tokens = [(ids["<tool_call>"], "<tool_call>"), (99, "\n<function=f>\n<parameter=s>\nSo:\n"), (99, QUOTED)]
    tokens += [(99, "\n</parameter>\n</function>\n"), (ids["</tool_call>"], "</tool_call>")]
    case = run.Case("", TOOLS)
    for by_character in (False, True):
        split = [(token, part) for token, text in tokens for part in (text if by_character and token == 99 else [text])]
        found = run.fold(run.parse_tokens(CODER, case, split, ids, at_once=False))
        assert found.failures == ()
        escaped = QUOTED.replace("\n", "\\n")
        assert found.calls == (("f", f'{{"s": "So:\\n{escaped}"}}'),)


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize(
    ("raw", "content", "calls", "kinds"),
    [
        ('<tool_call>{"name": "' + "f" * 60 + '"}</tool_call>x', None, (), ["value_too_large"]),
        ('<tool_call>{"arguments": {"n": "</tool_call>' + "1" * 60 + '"}}</tool_call>x', None, (), ["value_too_large"]),
        ('<tool_call>{"name": "f", "arguments": "' + "{" * 60 + '"}</tool_call>', None, (), ["value_too_large"]),
        (
            '<tool_call>{"name": "f", "arguments": {"n": ' + "1" * 60 + "}}</tool_call>",
            "",
            (("f", '{"n": ' + "1" * 60 + "}"),),
            [],
        ),
    ],
)
def test_what_must_be_held_has_a_limit(hold: bool, raw: str, content: str | None, calls: object, kinds: list[str]) -> None:
    program = run.program(hermes.FORMAT, 50)
    case = run.Case(raw, TOOLS, hold=hold)
    found = run.parse(program, case)
    assert run.parse(program, case, run.by_characters(raw)) == found
    folded = run.fold(found)
    assert folded.content == (raw if content is None else content)
    assert folded.calls == calls
    assert [kind for kind, _ in folded.failures] == kinds


def test_a_tagged_value_over_the_limit_is_a_string_if_it_may_be_one() -> None:
    program = run.program(qwen3_coder.FORMAT, 20)
    raw = "<tool_call><function=f><parameter={}>{}</parameter></function></tool_call>"
    for pieces in (None, iter):
        long_object = run.Case(raw.format("o", '{"a": ' + "1" * 30), TOOLS, hold=True)
        found = run.fold(run.parse(program, long_object, pieces and pieces(long_object.raw)))
        assert found.calls == (("f", '{"o": "{\\"a\\": ' + "1" * 30 + '"}'),)
        assert found.failures == (("value_too_large", True),)
        number = run.Case(raw.format("n", "1" * 30), TOOLS, hold=True)
        found = run.fold(run.parse(program, number, pieces and pieces(number.raw)))
        assert (found.calls, found.failures, found.content) == ((), (("value_too_large", False),), number.raw)


def test_a_suspected_call_over_the_limit_is_a_call() -> None:
    program = run.program(hermes.FORMAT, 50)
    raw = '<think>a<tool_call>{"name": "f", "arguments": {"s": "' + "x" * 60 + '"}}</tool_call></think>b'
    for pieces in ([raw], list(raw)):
        found = run.fold(run.parse(program, run.Case(raw, TOOLS), pieces))
        assert (found.reasoning, found.content, len(found.calls)) == ("a", "</think>b", 1)
        assert [kind for kind, _ in found.failures] == ["implicit_reasoning_end", "stray_marker"]


def test_long_runs_of_whitespace_are_text() -> None:
    blank = " " * 300
    found = _found(hermes.FORMAT, f'{blank}<tool_call>{{"name": "f"}}</tool_call>')
    assert (found.content, found.calls) == (blank, (("f", "{}"),))
    newlines = "\n" * 300
    found = _found(hermes.FORMAT, f"<think>a{newlines}</think>b")
    assert found.reasoning == "a" + "\n" * 44
    raw = f"<tool_call><function=f><parameter=s>a</parameter>{newlines}</function></tool_call>"
    assert _found(qwen3_coder.FORMAT, raw).failures == (("missing_closer", True),)


def test_long_names_are_no_headers() -> None:
    long = "n" * 300
    for raw in (
        f"<tool_call><function={long}></function></tool_call>",
        f"<tool_call><function=f><parameter={long}>1</parameter>",
    ):
        found = _found(qwen3_coder.FORMAT, raw)
        assert (found.content, found.failures) == (raw, (("bad_header", False),))
    assert _found(qwen3_coder.FORMAT, f"<function={long}>").failures == (("stray_marker", True),)
    raw = f"<tool_call><function=f><parameter=s>\n<parameter={long}></parameter></function></tool_call>"
    assert _found(qwen3_coder.FORMAT, raw).calls == (("f", f'{{"s": "<parameter={long}>"}}'),)


@dataclass(frozen=True, slots=True)
class _Broken:
    """A codec with a fault: it starts a call and raises at the first `!`."""

    bare_openers: tuple[str, ...] = ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        raise NotImplementedError

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "_BrokenReader":
        return _BrokenReader(calls)


class _BrokenReader:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def step(self, cursor: Cursor) -> Progress:
        if not self._calls.is_open:
            self._calls.start("f", cursor.offset)
        if "!" in cursor.text[cursor.pos :]:
            raise ZeroDivisionError
        cursor.advance(len(cursor.text), "arguments")
        return "more"


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("thought", ["", "<think>hm"])
def test_a_fault_of_ours_costs_no_text(hold: bool, thought: str) -> None:
    spec = FormatSpec("broken", reasoning=hermes.FORMAT.reasoning, blocks=(Block(Marker("<c>"), None, _Broken()),))
    raw = f"{thought}<c>abc!def<c>!"
    for pieces in ([raw], list(raw)):
        found = run.fold(run.parse(run.program(spec), run.Case(raw, TOOLS, hold=hold), pieces))
        assert found.content == "<c>abc!def<c>!"
        assert found.reasoning == thought.removeprefix("<think>")
        assert ("internal", False) in found.failures
        assert (found.calls, found.finish) == ((), "stop")


def test_a_cut_call_whose_deltas_were_sent_is_not_sent_again() -> None:
    raw = 'Now\n<tool_call>{"name": "f", "arguments": {"s": "ab'
    deltas = run.parse(HERMES, run.Case(raw, TOOLS, reason="length"))
    found = run.fold(deltas)
    assert (found.content, found.calls) == ("Now", ())
    assert deltas[-2] == ParseFailure("truncated_call", 0, 4 - 1, False)
    damaged = run.fold(run.parse(HERMES, run.Case(raw + "\n", TOOLS, reason="length")))
    assert damaged.content == raw + "\n"
    assert [kind for kind, _ in damaged.failures] == ["invalid_json"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_made_up_families_keep_the_invariants(data: st.DataObject) -> None:
    program = run.program(ARRAY, 60)
    parts = [
        "[CALLS]",
        "<calls>",
        "</calls>",
        "[ONE]",
        "<answer>",
        "</answer>",
        "[",
        "]",
        ",",
        '{"name": "f"}',
        '{"name": "f", "arguments": {"n": 1}}',
    ]
    parts += [
        "[CA",
        "</ca",
        "text",
        "\n",
        " ",
        '{"call_id": "a"',
        "}",
        '{"arguments": {"s": "x"}, "name": "f"}',
        '"' + "y" * 70 + '"',
    ]
    raw = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=12)))
    case = run.Case(raw, TOOLS, reason=data.draw(st.sampled_from(["stop", "length"])), hold=data.draw(st.booleans()))
    whole = run.parse(program, case)
    assert run.parse(program, case, run.by_characters(raw)) == whole
    assert run.parse(program, case, run.at_random(raw, data.draw(st.integers(0, 99)))) == whole
    deltas, spans = run.accounted(program, case, [raw])
    assert run.fold(deltas).content == "".join(text for text, kind in spans if kind == "content")
    assert "internal" not in {kind for kind, _ in run.fold(deltas).failures}


def test_an_object_alone_begins_no_call() -> None:
    assert JsonInWrapper().bare_openers == ()
    nothing_more = Cursor()
    nothing_more.final = True
    assert JsonInWrapper().begins(nothing_more, 0, frozenset({"f"})) is False
    assert JsonInWrapper().begins(Cursor(), 0, frozenset({"f"})) is None


def test_nothing_is_kept_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="nothing was kept"):
        Cursor().rewind(0)


def test_registry_formats_are_compiled_programs() -> None:
    assert all(isinstance(each, CompiledFormat) for each in registry.load().values())
    assert len(list(itertools.chain(registry.load()))) >= 3


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "plain"])
def test_without_calls_what_would_be_one_is_content(name: str) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    parser = registry.load()[name].parser(ParseOptions(calls=False))
    deltas = [*parser.feed(f"Hi {call[:20]}"), *parser.feed(call[20:]), *parser.finish("stop", Usage())]
    assert merged(deltas) == [ContentText(f"Hi {call}"), Finish("stop", Usage())]


def test_without_calls_a_thought_is_still_a_thought() -> None:
    parser = registry.load()["hermes"].parser(ParseOptions(calls=False))
    deltas = [*parser.feed("<think>\nwell <tool_call>\n</think>\n\nHi <tool_call>"), *parser.finish("stop", Usage())]
    said = [delta for delta in merged(deltas) if not isinstance(delta, ParseFailure)]
    assert said == [ReasoningText("well <tool_call>"), ContentText("Hi <tool_call>"), Finish("stop", Usage())]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("@f<calls><call>f:{}</call></calls>", run.Folded("", "", (("f", "{}"),), (), "tool_calls")),
        ("@g<calls><call>f:{}</call></calls>", run.Folded("", "@g", (("f", "{}"),), (), "tool_calls")),
        ("f<calls><call>f:{}</call></calls>", run.Folded("", "f", (("f", "{}"),), (), "tool_calls")),
        ("@<calls><call>f:{}</call></calls>", run.Folded("", "@", (("f", "{}"),), (), "tool_calls")),
        ("@f <calls><call>f:{}</call></calls>", run.Folded("", "@f ", (("f", "{}"),), (), "tool_calls")),
        ("@g<calls></calls>z", run.Folded("", "@gz", (), (("bad_header", True),), "stop")),
        ("@g<calls>x<call>f:{}</call></calls>", run.Folded("", "@gx", (("f", "{}"),), (("bad_header", True),), "tool_calls")),
        ("@g<calls><call>f:x", run.Folded("", "@g<calls><call>f:x", (), (("invalid_json", False),), "stop")),
        ("@f<note>z", run.Folded("", "z", (), (), "stop")),
        ("@g<note>z", run.Folded("", "@gz", (), (), "stop")),
        ("@g", run.Folded("", "@g", (), (), "stop")),
    ],
)
def test_only_the_calls_own_name_before_its_block_is_markup(raw: str, expected: run.Folded) -> None:
    note = Marker("<note>")
    spec = FormatSpec(
        name="named",
        blocks=(Block(Marker("<calls>"), Marker("</calls>"), NamedJson(name_end=":", call_open="<call>", call_close="</call>")),),
        transparent=(note,),
        name_before_call="@",
        named=(note,),
    )
    assert _found(spec, raw) == expected


@pytest.mark.parametrize(
    ("stops", "kinds"), [((), ["missing_closer"]), (("<|tools_suffix|>",), []), (("</s>",), ["missing_closer"])]
)
def test_a_closer_at_which_the_engine_stops_is_not_missed(stops: tuple[str, ...], kinds: list[str]) -> None:
    options = ParseOptions(tools=TOOLS, stops=frozenset(stops))
    parser = registry.load()["apertus"].parser(options)
    deltas = [*parser.feed('<|tools_prefix|>[{"f": {}}]'), *parser.finish("stop", Usage())]
    assert [delta.kind for delta in deltas if isinstance(delta, ParseFailure)] == kinds
    assert any(isinstance(delta, ToolCallEnd) for delta in deltas)
