"""Fixtures of `canitoolcall` through our parsers: on text, and on ids of a synthetic tokenizer in which each marker is one id."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy, split, split_text
from canitoolcall.fixtures import Family, Fixture
from canitoolcall.results import Observation, ParsedToolCall, ParseResult

from gateway.formats.base import Format, ParseOptions
from gateway.request import (
    ContentText,
    Delta,
    FinishReason,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    Usage,
)

FORMATS: Mapping[str, str] = {
    "deepseek-v3": "deepseek_v3",
    "deepseek-v31": "deepseek_v31",
    "deepseek-v32": "deepseek_v32",
    "deepseek-v4": "deepseek_v4",
    "deepseek-v41": "deepseek_v41",
    "gemma4": "gemma4",
    "glm45-newline": "glm45",
    "glm47-compact": "glm47",
    "glm53-compact": "glm47",
    "gpt-oss": "gpt_oss",
    "kimi-k2-instruct": "kimi_k2",
    "kimi-k2-thinking": "kimi_k2",
    "kimi-k3-xtml": "kimi_k3",
    "llama3-json": "llama3_json",
    "llama4-pythonic": "llama4_pythonic",
    "devstral-2507": "mistral_v13",
    "v11": "mistral_v13",
    "v11-think-text": "magistral_v11",
    "v13": "mistral_v13",
    "v13-think": "mistral_v13",
    "v3": "mistral_v3",
    "qwen3-hybrid": "hermes",
    "qwen3-instruct-2507": "hermes",
    "qwen3-thinking-2507": "hermes",
    "qwen3-coder": "qwen3_coder",
    "qwen3-coder-next": "qwen3_coder",
    "qwen3.5": "qwen35",
    "qwen3.8": "qwen35",
}
"""Our format for each variant of the suite."""

CHARACTERS = ChunkStrategy("char", seed=0)
Token = tuple[int, str]
_PIECE = re.compile(r"\s+|\w{1,6}|.", re.DOTALL)
_TEXT_ID = 1000  # ids of markers are below


def format_name(fixture: Fixture, family: Family) -> str:
    """The format that the fixture's model writes."""
    reference = family.reference_for(fixture.reference_model)
    if reference is None or reference.variant is None:
        raise LookupError(f"{fixture.id}: no reference model")
    return FORMATS[reference.variant]


def observations(fixture: Fixture, family: Family, form: Format) -> Iterator[tuple[str, Observation]]:
    """The parses by text and by ids, each whole and in every chunking."""
    replay = _Replay(fixture, family, form)
    texts = {strategy.id: replay.by_text(replay.chunks(strategy)) for strategy in DEFAULT_STRATEGIES}
    texts[CHARACTERS.id] = replay.by_text([[(0, each)] for each in split_text(fixture.raw_output, CHARACTERS)])
    yield "text", Observation(replay.by_text([[(0, fixture.raw_output)]]), texts)
    ids = {strategy.id: replay.by_ids(replay.chunks(strategy)) for strategy in DEFAULT_STRATEGIES}
    yield "ids", Observation(replay.by_ids([replay.tokens]), ids)


class _Replay:
    def __init__(self, fixture: Fixture, family: Family, form: Format) -> None:
        reference = family.reference_for(fixture.reference_model)
        self._tail = fixture.generation_prompt
        if self._tail is None and reference is not None:
            self._tail = reference.default_generation_prompt
        self._fixture = fixture
        self._form = form
        self._markers = {text: number for number, text in enumerate(form.visible)}
        self.tokens = list(_tokens(fixture.raw_output, self._markers))

    def chunks(self, strategy: ChunkStrategy) -> list[list[Token]]:
        special = {token for token in self.tokens if token[0] < _TEXT_ID}
        return split(self.tokens, strategy, special)

    def by_text(self, chunks: Sequence[Sequence[Token]]) -> ParseResult:
        parser = self._form.parser(self._options({}))
        deltas = [delta for chunk in chunks for delta in parser.feed("".join(text for _, text in chunk))]
        return _folded([*deltas, *parser.finish(self._reason, Usage())])

    def by_ids(self, chunks: Sequence[Sequence[Token]]) -> ParseResult:
        parser = self._form.parser(self._options(self._markers))
        deltas = [delta for chunk in chunks for delta in parser.feed_tokens(chunk)]
        return _folded([*deltas, *parser.finish(self._reason, Usage())])

    @property
    def _reason(self) -> FinishReason:
        return "length" if self._fixture.truncated else "stop"

    def _options(self, marker_ids: Mapping[str, int]) -> ParseOptions:
        numbers = itertools.count()
        tools = [tool["function"] for tool in self._fixture.tools]
        return ParseOptions(
            tools=tuple(ToolSpec(tool["name"], tool.get("description"), tool.get("parameters")) for tool in tools),
            prompt_tail=self._tail or "",
            new_call_id=lambda: f"call_{next(numbers)}",
            marker_ids=marker_ids,
            hold_arguments=True,
        )


def _tokens(raw: str, markers: Mapping[str, int]) -> Iterator[Token]:
    pattern = "|".join(re.escape(text) for text in sorted(markers, key=len, reverse=True))
    for piece in re.split(f"({pattern})", raw) if pattern else [raw]:
        if piece in markers:
            yield markers[piece], piece
        else:
            yield from ((_TEXT_ID + at, text) for at, text in enumerate(_PIECE.findall(piece)))


def _folded(deltas: Sequence[Delta]) -> ParseResult:
    content, reasoning = [], []
    calls: dict[int, ParsedToolCall] = {}
    pieces: dict[int, tuple[str, list[str]]] = {}
    for delta in deltas:
        match delta:
            case ContentText(text):
                content.append(text)
            case ReasoningText(text):
                reasoning.append(text)
            case ToolCallStart(index, _, name):
                pieces[index] = (name, [])
            case ToolCallArguments(index, text):
                pieces[index][1].append(text)
            case ToolCallEnd(index):
                name, texts = pieces[index]
                calls[index] = ParsedToolCall(name=name, arguments_raw="".join(texts))
    return ParseResult(
        content="".join(content) or None, reasoning_content="".join(reasoning) or None, tool_calls=tuple(calls.values())
    )
