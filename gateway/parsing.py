"""Raw model output to the parsed message, for `interlock parse`: the same parsers as in the gateway, without an engine.

Invariant: however the output is cut into chunks, the result is the same. Offsets and spans are half-open, in code points of the
raw output.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.errors import BadRequest, shown
from gateway.formats.base import Format, ParseOptions
from gateway.request import (
    ContentText,
    Delta,
    Finish,
    ParseFailure,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    Usage,
)
from gateway.wire.jsonio import Decoder, JsonError, Raw, encode, without_lone_surrogates

_NO_ID = -1  # of a piece of text that is no marker
_MENDED = rb"\ufffd"  # in the place of half a character
_MAX_PIECE = 12  # characters of a random chunk
Chunks = Callable[[str], Iterable[str]]


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    """A tool as in a chat request, as the bare function, or as Anthropic's API has it, with `input_schema`."""

    type: str | None = None
    function: _Function | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    input_schema: dict[str, Any] | None = None


class Case(msgspec.Struct, kw_only=True):
    """One output, and what its parser is told: a line of `--jsonl`. Without `tools` no call is of an unknown one.
    `literal_spans` are the places at which text that spells a single-token marker is text."""

    raw: str
    format: str | None = None
    tools: list[_Tool] | None = None
    prompt_tail: str = ""
    finish_reason: str = "stop"
    literal_spans: list[tuple[int, int]] | None = None


_FINISHES: Mapping[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
_CASE: Decoder[Case] = Decoder(Case)
_OUTLINE: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])
_TOOLS: Decoder[list[_Tool]] = Decoder(list[_Tool])


def read_case(line: bytes, defaults: Mapping[str, Any] | None = None) -> Case:
    """One line of `--jsonl`, with `defaults` for the fields that it leaves out. Raises BadRequest with the field."""
    whole = without_lone_surrogates(line)
    try:
        fields = _OUTLINE.decode(whole)
        for name, value in fields.items():
            if name not in Case.__struct_fields__:
                raise BadRequest(f"no such field; known: {', '.join(Case.__struct_fields__)}", param=shown(name))
            if whole != line and _MENDED in bytes(value):
                raise BadRequest("half a character is escaped (a lone surrogate)", param=name)
        return _CASE.decode(encode({**(defaults or {}), **fields}))
    except JsonError as error:
        raise BadRequest(error.message, param=error.path) from None


def read_tools(data: bytes) -> list[_Tool]:
    """The tools of a file: a JSON list of them. Raises BadRequest with the field."""
    try:
        return _TOOLS.decode(data)
    except JsonError as error:
        raise BadRequest(error.message, param=f"tools{error.path}") from None


def chunking(name: str) -> Chunks:
    """How output is cut: `one`, `char` or `random:SEED`. Raises BadRequest."""
    if name == "one":
        return lambda text: [text]
    if name == "char":
        return iter
    kind, _, seed = name.partition(":")
    if kind == "random" and seed.isascii() and seed.isdigit():
        return lambda text: _random_chunks(text, random.Random(seed))  # noqa: S311  repeatable on purpose
    raise BadRequest(f"{shown(name)} is not one of one, char, random:SEED", param="chunks")


def _random_chunks(text: str, source: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = source.randint(1, _MAX_PIECE)
        yield text[at : at + size]
        at += size


def parse(case: Case, formats: Mapping[str, Format], chunks: Chunks) -> Mapping[str, Any]:
    """The parsed message as plain JSON values. Raises BadRequest with the field."""
    known = ", ".join(sorted({each.name for each in formats.values()}))
    if case.format is None:
        raise BadRequest(f"is missing; known: {known}", param="format")
    if case.format not in formats:
        raise BadRequest(f"{shown(case.format)} is no format; known: {known}", param="format")
    if case.finish_reason not in _FINISHES:
        raise BadRequest(f"{shown(case.finish_reason)} is not one of {', '.join(_FINISHES)}", param="finish_reason")
    deltas = _deltas(case, formats[case.format], chunks)
    if case.tools is None:  # then none is unknown
        deltas = [delta for delta in deltas if not (isinstance(delta, ParseFailure) and delta.kind == "unknown_tool")]
    return folded(deltas)


def _deltas(case: Case, form: Format, chunks: Chunks) -> list[Delta]:
    numbers = itertools.count()
    literal = bool(case.literal_spans)
    markers = {text: number for number, text in enumerate(form.visible)} if literal else {}
    parser = form.parser(
        ParseOptions(
            tools=tuple(_spec(tool, index) for index, tool in enumerate(case.tools or ())),
            prompt_tail=case.prompt_tail,
            new_call_id=lambda: f"call_{next(numbers)}",
            marker_ids=markers,
            hold_arguments=True,
        )
    )
    deltas: list[Delta] = []
    if not literal:
        for piece in chunks(case.raw):
            deltas += parser.feed(piece)
    else:
        for token, text in _tokens(case.raw, markers, case.literal_spans or ()):
            tokens = [(token, text)] if token != _NO_ID else [(_NO_ID, part) for part in chunks(text)]
            for each in tokens:
                deltas += parser.feed_tokens([each])
    return deltas + parser.finish(_FINISHES[case.finish_reason], Usage())


def _tokens(raw: str, markers: Mapping[str, int], spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """The output as tokens: its markers, but for those in the spans, and the text between them."""
    literal = _checked(spans, len(raw))
    begun = passed = 0
    pattern = "|".join(re.escape(text) for text in sorted(markers, key=len, reverse=True))
    for found in re.finditer(pattern, raw) if pattern else ():
        while passed < len(literal) and literal[passed][1] <= found.start():
            passed += 1
        if passed == len(literal) or found.end() <= literal[passed][0]:
            yield _NO_ID, raw[begun : found.start()]
            yield markers[found[0]], found[0]
            begun = found.end()
    yield _NO_ID, raw[begun:]


def _checked(spans: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The spans in order, without empty ones."""
    for begin, end in spans:
        if not 0 <= begin <= end <= size:
            raise BadRequest(f"[{begin}, {end}) is no part of raw, which has {size} characters", param="literal_spans")
    ordered = sorted((begin, end) for begin, end in spans if begin < end)
    for (first, last), (begin, end) in itertools.pairwise(ordered):
        if begin < last:
            raise BadRequest(f"[{first}, {last}) and [{begin}, {end}) overlap", param="literal_spans")
    return ordered


def _spec(tool: _Tool, index: int) -> ToolSpec:
    function = tool.function
    if function is None and tool.name is None:
        raise BadRequest("a tool needs a name", param=f"tools[{index}].name")
    if function is None:
        schema = tool.parameters if tool.input_schema is None else tool.input_schema
        return ToolSpec(tool.name or "", tool.description, schema)
    return ToolSpec(function.name, function.description, function.parameters)


def folded(deltas: Iterable[Delta]) -> Mapping[str, Any]:
    """The whole answer: a call that never ended is none."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: dict[int, tuple[ToolCallStart, list[str]]] = {}
    whole: list[Mapping[str, str]] = []
    failures: list[Mapping[str, Any]] = []
    finish: str | None = None
    for delta in deltas:
        match delta:
            case ReasoningText(text):
                reasoning.append(text)
            case ContentText(text):
                content.append(text)
            case ToolCallStart(index):
                calls[index] = (delta, [])
            case ToolCallArguments(index, text):
                calls[index][1].append(text)
            case ToolCallEnd(index):
                start, pieces = calls[index]
                whole.append({"id": start.id, "name": start.name, "arguments": "".join(pieces)})
            case ParseFailure(kind, index, offset, recovered):
                failures.append({"kind": kind, "index": index, "offset": offset, "recovered": recovered})
            case Finish(reason):
                finish = reason
    return {
        "reasoning": "".join(reasoning) or None,
        "content": "".join(content) or None,
        "tool_calls": whole,
        "failures": failures,
        "finish_reason": finish,
    }
