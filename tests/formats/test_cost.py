"""Time is linear: the Python calls a token, and the text that the cursor moves a token, do not grow with the output."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest
from perf import bench_formats as bench
from support import formats as run

from gateway.formats import registry
from gateway.formats.base import Format, ParseOptions
from gateway.formats.compiled import CompiledFormat, automaton
from gateway.formats.cursor import Cursor
from gateway.request import Delta, ParseFailure, ReasoningText, ToolCallEnd, ToolSpec, Usage
from gateway.wire import jsonio

pytestmark = pytest.mark.no_cover  # what is counted here is counted twice as fast without, and other tests run the same code
FORMATS: list[Format] = list({each.name: each for each in registry.load().values()}.values())
MODES = [pytest.param(each, mode, id=f"{each.name}-{mode}") for each in FORMATS for mode in bench.outputs(each, 1)]
TOOLS = (
    ToolSpec(
        "write",
        None,
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "rows": {"type": "array"}, "note": {"type": ["string", "null"]}},
        },
    ),
)


class _CountingCursor(Cursor):
    """Counts the characters that each `add` moves."""

    __slots__ = ("moved",)

    def __init__(self, by_id: Iterable[str] = ()) -> None:
        super().__init__(by_id)
        self.moved = 0

    def add(self, text: str) -> None:
        super().add(text)
        self.moved += len(self.text)


def _work(form: Format, mode: str, tokens: int) -> tuple[float, float]:
    """Calls of functions, Python's and C's, and characters moved, a token."""
    assert isinstance(form, CompiledFormat)
    raw, tail = bench.outputs(form, tokens)[mode]
    pieces = bench.pieces(raw)
    cursor = _CountingCursor()
    parser = automaton(form.program, ParseOptions(tools=TOOLS, prompt_tail=tail), cursor)
    deltas: list[Delta] = []
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for piece in pieces:
            deltas += parser.feed(piece)
        deltas += parser.finish("stop", Usage())
    finally:
        sys.setprofile(None)
    assert not any(isinstance(delta, ParseFailure) for delta in deltas)
    assert any(isinstance(delta, ToolCallEnd) for delta in deltas) == (mode in ("string", "rows"))
    assert any(isinstance(delta, ReasoningText) for delta in deltas) == (mode == "reasoning")
    return calls / len(pieces), cursor.moved / len(pieces)


def test_every_family_is_measured_with_all_that_it_writes() -> None:
    for form in FORMATS:
        assert isinstance(form, CompiledFormat)
        spec = form.program.spec
        calls = {"string", "rows"} if spec.blocks or spec.headers else set()
        thoughts = {"reasoning"} if spec.reasoning or spec.headers else set()
        assert set(bench.outputs(form, 1)) == {"content"} | calls | thoughts


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in FORMATS if "string" in bench.outputs(form, 1)])
def test_the_call_that_is_measured_beside_others_parsers_holds_the_text(form: Format) -> None:
    assert isinstance(form, CompiledFormat)
    text = bench.text_of(100, bench.LINE + "\\ \" \\n' <\n")
    raw = bench.one_call(form, text)
    tokens = bench.with_markers(form, raw)
    assert "".join(tokens) == raw
    whole = run.fold(run.parse(form.program, run.Case(raw, (bench.LOOK,)), tokens))
    ((name, arguments),) = whole.calls
    assert (name, jsonio.decode(arguments), whole.content) == ("look", {"path": text}, "")


@pytest.mark.parametrize(("form", "mode"), MODES)
def test_the_work_a_token_does_not_grow(form: Format, mode: str) -> None:
    small_calls, small_moved = _work(form, mode, 1_000)
    large_calls, large_moved = _work(form, mode, 8_000)
    assert large_calls < 1.1 * small_calls
    assert large_moved < 1.1 * small_moved
    assert large_moved < 60  # nothing but a token and what may begin a marker


CODER = "<tool_call><function=write>"
DSML = "<｜DSML｜"
SECTION, KIMI = "<|tool_calls_section_begin|>", "<|tool_call_begin|>"
LFM = "<|tool_call_start|>["
GEMMA = "<|tool_call>call:write{"
ROLE = "<|start|>assistant"
M3 = ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="write">]<]minimax[>[<rows>'
IFM = "<ifm|tool_calls><ifm|tool_call>write<ifm|arg_key>text</ifm|arg_key>"
# What repeats, by the families that it may hurt: the end of the prompt, how the output begins, what repeats.
HOSTILE = {
    "openers in a thought": ("hermes qwen35", "", "<think>", "<tool_call>"),
    "suspected calls in a thought": ("hermes", "", "<think>", '<tool_call>{"name": "f"}</tool_call>'),
    "damaged calls": ("hermes qwen3_coder glm45", "", "", '<tool_call>{"name": "f", x'),
    "stray closers": ("hermes qwen3_coder glm45", "", "", "</tool_call>"),
    "tags in a value": ("qwen3_coder", "", f"{CODER}<parameter=text>", "</parameter> \n<parameter=text>\n"),
    "unclosed calls": ("qwen3_coder", "", "", f"{CODER}<parameter=text>\n"),
    "repeated keys": ("hermes", "", '<tool_call>{"name": "write", "arguments": {', '"a": 1, '),
    "newlines": ("hermes qwen3_coder llama3_json llama4_pythonic gpt_oss", "", "", "\n"),
    "spaces": ("hermes llama3_json llama4_pythonic gpt_oss", "", "", " "),
    "escapes": ("hermes", "", '<tool_call>{"name": "write", "arguments": {"text": "', "\\u00e9"),
    "arguments first": ("hermes", "", '<tool_call>{"arguments": {"text": "', "abc "),
    "long names": ("glm45 glm47", "", "<tool_call>", "n"),
    "blocks with long names": ("glm45", "", "", "<tool_call>" + "n" * 250),
    "tags in a plain value": ("glm45", "", "<tool_call>write<arg_key>text</arg_key><arg_value>", "</arg_value> <arg_key>x"),
    "parameters in a call": (
        "deepseek_v32",
        "",
        f'{DSML}function_calls>{DSML}invoke name="write">',
        f'{DSML}parameter name="a">',
    ),
    "text between tagged calls": ("deepseek_v32", "", f"{DSML}function_calls>", f'{DSML}invoke name="write"></｜DSML｜invoke>x'),
    "text between nested calls": (
        "minimax_m3",
        "",
        "]<]minimax[>[<tool_call>",
        ']<]minimax[>[<invoke name="write">]<]minimax[>[</invoke>x',
    ),
    "text beside elements": ("minimax_m3", "", M3, "x]<]minimax[>[<a>1]<]minimax[>[</a>"),
    "repeated elements": ("minimax_m3", "", M3, "]<]minimax[>[<a>1]<]minimax[>[</a>"),
    "tags in a string that may be null": ("minimax_m3", "", M3.replace("rows", "note"), "]<]minimax[>[<a>"),
    "words before calls": ("inkling", "", "", 'loook<|content_invoke_tool_json|>{"name": "write"}<|end_message|>'),
    "a long word": ("inkling", "", "", "n"),
    "text in headers": ("gpt_oss", "", "", "<|channel|>final a b c<|message|>d<|end|><|start|>assistant"),
    "members that say nothing": ("hermes", "", '<tool_call>{"name": "write", ', '"a": 1, '),
    "calls without section": ("kimi_k2 deepseek_v31", "", "", f"{KIMI}<｜tool▁call▁begin｜>x"),
    "noise between calls": ("kimi_k2", "", SECTION, f"{KIMI}write:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>x"),
    "long headers": ("mistral_v13 kimi_k2", "", f"[TOOL_CALLS]{SECTION}{KIMI}", "n"),
    "lists that begin no call": ("llama4_pythonic", "", "[", " "),
    "a long name of a call": ("llama4_pythonic lfm2", "", LFM, "n"),
    "spaces after a key": ("lfm2", "", f"{LFM}write(text", " "),
    "Python escapes": ("lfm2", "", f"{LFM}write(text='", "\\'\\x41\\101"),
    "Python quotes": ("lfm2", "", f"{LFM}write(text='''", "''\\\\"),
    "keys of one dict": ("lfm2", "", f"{LFM}write(a={{", "'a': 1, "),
    "nested lists": ("lfm2", "", f"{LFM}write(a=", "["),
    "a number": ("lfm2", "", f"{LFM}write(a=", "1"),
    "halves of delimiters": ("gemma4", "", f'{GEMMA}text:<|"|>', '<|"'),
    "short strings": ("gemma4", "", f"{GEMMA}a:[", '<|"|>x<|"|>,'),
    "bare words": ("gemma4", "", f"{GEMMA}a:[", "Word,"),
    "separators": ("llama3_json", "", "", '{"name": "write"};'),
    "spaces after a separator": ("llama3_json", "", '{"name": "write"};', " "),
    "braces": ("llama3_json", "", "", '{"name": '),
    "openers that are text": ("functionary_v32", "", "", ">>>"),
    "openers and words": ("functionary_v32", "", "", ">>>word\n"),
    "a long first line": ("functionary_v32", ">>>", "", "n"),
    "calls without an end": ("functionary_v32", "", "", '>>>write\n{"text": 1'),
    "recipients": ("muse_glimmer", ROLE, "", f" to=self<|message|>a<|eom|>{ROLE}"),
    "tags in a thought": ("muse_glimmer", ROLE, " to=self<|message|>", "<|message|><atem:function_calls>"),
    "types of a value": ("k2_horizon", "", IFM, "<ifm|arg_type>"),
    "openers of thoughts": ("k2_horizon", "<ifm|think>", "", "<ifm|think_fast>"),
    "messages": ("gpt_oss", ROLE, "", f"<|channel|>analysis<|message|>a<|end|>{ROLE}"),
    "starts": ("gpt_oss", "", "", "<|start|>"),
    "ends": ("gpt_oss", ROLE, "<|channel|>final<|message|>", "<|end|>"),
    "channels": ("gpt_oss", ROLE, "", "<|channel|>"),
    "broken calls": ("gpt_oss", ROLE, "", f"<|channel|>x to=functions.write<|message|>{{x<|call|>{ROLE}"),
}
HOSTILE_CASES = [(name, kind) for kind, (names, *_) in HOSTILE.items() for name in names.split()]


@pytest.mark.parametrize(("name", "kind"), HOSTILE_CASES)
@pytest.mark.parametrize("at_once", [True, False])
def test_hostile_outputs_are_linear_too(name: str, kind: str, at_once: bool) -> None:
    form = registry.load()[name]
    assert isinstance(form, CompiledFormat)
    _, tail, head, repeated = HOSTILE[kind]

    def work(characters: int) -> tuple[float, float]:
        raw = head + repeated * (characters // len(repeated))
        cursor = _CountingCursor()
        parser = automaton(form.program, ParseOptions(tools=TOOLS, prompt_tail=tail), cursor)
        steps = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(count)
        try:
            for piece in [raw] if at_once else bench.pieces(raw):
                parser.feed(piece)
            parser.finish("length", Usage())
        finally:
            sys.setprofile(None)
        return steps / len(raw), cursor.moved / len(raw)

    small, large = work(2_000), work(8_000)  # over each limit of what is held
    assert large[0] < 1.3 * small[0] + 0.1
    assert large[1] < 1.3 * small[1] + 0.1
