"""Time is linear: the Python calls a token, and the text that the cursor moves a token, do not grow with the output."""

import importlib.util
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gateway.formats import registry
from gateway.formats.base import Format, ParseOptions
from gateway.formats.compiled import CompiledFormat
from gateway.formats.cursor import Cursor
from gateway.formats.machine import Machine
from gateway.request import ToolSpec, Usage

_SPEC = importlib.util.spec_from_file_location("bench_formats", Path(__file__).parents[1] / "perf" / "bench_formats.py")
assert _SPEC is not None
assert _SPEC.loader is not None
bench = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bench)

FORMATS: list[Format] = list({each.name: each for each in registry.load().values()}.values())
MODES = [pytest.param(each, mode, id=f"{each.name}-{mode}") for each in FORMATS for mode in bench.outputs(each, 1)]
TOOLS = (ToolSpec("write", None, {"type": "object", "properties": {"text": {"type": "string"}, "rows": {"type": "array"}}}),)


class _CountingCursor(Cursor):
    """Counts the characters that each `add` moves."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def add(self, text: str) -> None:
        super().add(text)
        self.moved += len(self.text)


def _work(form: Format, mode: str, tokens: int, *, tail: str = "") -> tuple[float, float]:
    """Calls of functions, Python's and C's, and characters moved, a token."""
    assert isinstance(form, CompiledFormat)
    raw, tail = bench.outputs(form, tokens)[mode]
    pieces = bench.pieces(raw)
    cursor = _CountingCursor()
    parser = Machine(form.program, ParseOptions(tools=TOOLS, prompt_tail=tail), cursor)
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for piece in pieces:
            parser.feed(piece)
        deltas = parser.finish("stop", Usage())
    finally:
        sys.setprofile(None)
    assert deltas
    return calls / len(pieces), cursor.moved / len(pieces)


@pytest.mark.parametrize(("form", "mode"), MODES)
def test_the_work_a_token_does_not_grow(form: Format, mode: str) -> None:
    small_calls, small_moved = _work(form, mode, 1_000)
    large_calls, large_moved = _work(form, mode, 8_000)
    assert large_calls < 1.1 * small_calls
    assert large_moved < 1.1 * small_moved
    assert large_moved < 60  # nothing but a token and what may begin a marker


HOSTILE = {
    "openers in a thought": ("<think>", "<tool_call>", "x"),
    "suspected calls in a thought": ("<think>", '<tool_call>{"name": "f"}</tool_call>', "x"),
    "damaged calls": ("", '<tool_call>{"name": "f", x', ""),
    "stray closers": ("", "</tool_call>", ""),
    "tags in a value": ("<tool_call><function=write><parameter=text>", "</parameter> \n<parameter=text>\n", ""),
    "unclosed calls": ("", "<tool_call><function=write><parameter=text>\n", ""),
    "repeated keys": ('<tool_call>{"name": "write", "arguments": {', '"a": 1, ', ""),
    "newlines": ("", "\n", ""),
    "escapes": ('<tool_call>{"name": "write", "arguments": {"text": "', "\\u00e9", ""),
    "arguments first": ('<tool_call>{"arguments": {"text": "', "abc ", ""),
}


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_outputs_are_linear_too(name: str, at_once: bool, kind: str) -> None:
    form = registry.load()[name]
    assert isinstance(form, CompiledFormat)
    head, repeated, end = HOSTILE[kind]

    def work(times: int) -> tuple[float, float]:
        raw = head + repeated * times + end
        cursor = _CountingCursor()
        parser = Machine(form.program, ParseOptions(tools=TOOLS), cursor)
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

    small, large = work(100), work(800)
    assert large[0] < 1.3 * small[0] + 0.1
    assert large[1] < 1.3 * small[1] + 0.1
