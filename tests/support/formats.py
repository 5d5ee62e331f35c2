"""Runs a format's parser over raw output in any split, folds what it says, and accounts for every character."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.formats.base import ParseOptions, Parser
from gateway.formats.calls import merged
from gateway.formats.compiled import automaton, compile_format
from gateway.formats.cursor import Cursor, Kind
from gateway.formats.program import Program
from gateway.formats.spec import FormatSpec
from gateway.request import (
    ContentText,
    Delta,
    Finish,
    FinishReason,
    ParseFailure,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    Usage,
)

USAGE = Usage(prompt_tokens=1, completion_tokens=2)
Token = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Case:
    """One output and what the parser is told of its request."""

    raw: str
    tools: tuple[ToolSpec, ...] = ()
    prompt_tail: str = ""
    reason: FinishReason = "stop"
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Folded:
    """A whole answer: what `ToolCallEnd` never came for is no call."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    failures: tuple[tuple[str, bool], ...]
    finish: str


def options(case: Case, marker_ids: dict[str, int] | None = None) -> ParseOptions:
    numbers = itertools.count()
    return ParseOptions(
        tools=case.tools,
        prompt_tail=case.prompt_tail,
        new_call_id=lambda: f"call_{next(numbers)}",
        marker_ids=marker_ids or {},
        hold_arguments=case.hold,
    )


def program(spec: FormatSpec, held_chars: int = 1 << 20) -> Program:
    return compile_format(spec, held_chars).program


def parse(machine: Program, case: Case, pieces: Iterable[str] | None = None) -> list[Delta]:
    """All deltas of one output, given in these pieces (at once without), neighbours merged."""
    parser = automaton(machine, options(case))
    return drain(parser, [case.raw] if pieces is None else pieces, case.reason)


def drain(parser: Parser, pieces: Iterable[str], reason: FinishReason) -> list[Delta]:
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    return merged(deltas + parser.finish(reason, USAGE))


def parse_tokens(machine: Program, case: Case, tokens: Sequence[Token], ids: dict[str, int], *, at_once: bool) -> list[Delta]:
    parser = automaton(machine, options(case, ids))
    deltas: list[Delta] = []
    for batch in [tokens] if at_once else [[token] for token in tokens]:
        deltas += parser.feed_tokens(batch)
    return merged(deltas + parser.finish(case.reason, USAGE))


def marker_ids(spec: FormatSpec) -> dict[str, int]:
    """An id for each marker that is a token, and for each token that markers are made of."""
    tokens = (*(marker.text for marker in spec.markers if marker.token), *spec.tokens)
    return {text: number for number, text in enumerate(tokens)}


def tokens_of(raw: str, ids: dict[str, int], size: int = 4) -> list[Token]:
    """A synthetic tokenizer: each text with an id is one token, other text pieces of `size` characters."""
    tokens: list[Token] = []
    at = plain = 0
    ordered = sorted(ids, key=len, reverse=True)
    while at <= len(raw):
        marker = next((text for text in ordered if raw.startswith(text, at)), None)
        if marker is not None or at == len(raw):
            tokens += [(10_000, raw[index : min(index + size, at)]) for index in range(plain, at, size)]
        if marker is None:
            at += 1
            continue
        tokens.append((ids[marker], marker))
        at = plain = at + len(marker)
    return tokens


def by_characters(raw: str) -> Iterator[str]:
    return iter(raw)


def by_cuts(raw: str, cuts: Iterable[int]) -> list[str]:
    edges = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


def at_random(raw: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    return by_cuts(raw, (chance.randint(0, len(raw)) for _ in range(chance.randint(0, 12))))


def fold(deltas: Sequence[Delta]) -> Folded:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            names[delta.index], arguments[delta.index] = delta.name, ""
        elif isinstance(delta, ToolCallArguments):
            arguments[delta.index] += delta.text
        elif isinstance(delta, ToolCallEnd):
            calls.append((names[delta.index], arguments[delta.index]))
    last = deltas[-1]
    assert isinstance(last, Finish)
    return Folded(
        reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningText)),
        content="".join(delta.text for delta in deltas if isinstance(delta, ContentText)),
        calls=tuple(calls),
        failures=tuple((delta.kind, delta.recovered) for delta in deltas if isinstance(delta, ParseFailure)),
        finish=last.reason,
    )


class TracingCursor(Cursor):
    """Remembers what each read piece of the output was."""

    __slots__ = ("spans",)

    def __init__(self, by_id: Iterable[str] = ()) -> None:
        super().__init__(by_id)
        self.spans: list[tuple[int, int, Kind]] = []

    def advance(self, to: int, kind: Kind) -> None:
        if to != self.pos:
            assert to > self.pos
            self.spans.append((self.offset, self.base + to, kind))
        super().advance(to, kind)

    def revise(self, start: int, stop: int, kind: Kind) -> None:
        before = [(first, min(last, start), its) for first, last, its in self.spans if first < start]
        after = [(max(first, stop), last, its) for first, last, its in self.spans if last > stop]
        self.spans = [*before, (start, stop, kind), *after]

    def rewind(self, offset: int) -> None:
        super().rewind(offset)
        self.spans = [(start, min(end, offset), kind) for start, end, kind in self.spans if start < offset]


def accounted(machine: Program, case: Case, pieces: Iterable[str]) -> tuple[list[Delta], list[tuple[str, Kind]]]:
    """The deltas, and the whole output as pieces of a kind, neighbours merged. Fails where a character has no kind or two."""
    cursor = TracingCursor()
    deltas = drain(automaton(machine, options(case), cursor), pieces, case.reason)
    at = 0
    spans: list[tuple[str, Kind]] = []
    for start, end, kind in cursor.spans:
        assert start == at, f"offset {at} of {case.raw!r} is skipped or read twice"
        at = end
        text = case.raw[start:end]
        if spans and spans[-1][1] == kind:
            text = spans.pop()[0] + text
        spans.append((text, kind))
    assert at == len(case.raw), f"offset {at} of {case.raw!r} is the last that is read"
    return deltas, spans
