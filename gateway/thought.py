"""A thought that may have so many tokens: where it has them the gateway ends it, and the engine goes on from there.

Invariant: what the engine goes on from says the same as what the client was given. Its ids are the engine's own; where its stream
lost those of a character (llama.cpp), they are the vocabulary's for that character.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from engines.base import MAX_COUNT, Chunk, Work
from gateway.prompt.thought_end import ThoughtEnd
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import ContentText, Delta, ToolCallStart, Usage

_ANSWERS = frozenset({ContentText, ToolCallStart})
MAX_ENDED = 8  # of one answer: a model that thinks again and again costs a call each time


class Reader(Protocol):
    """Reads one answer's chunks; here the gateway's `AnswerReader`."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete."""

    @property
    def in_thought(self) -> bool:
        """Whether it is in a thought, and amid no character, marker or call."""

    def read(self, chunk: Chunk) -> list[Delta]:
        """The deltas that this chunk completes."""


class ThoughtLimit:
    """Reads chunks up to the token with which the answer's thoughts have `tokens` of them. What comes after it is not read."""

    def __init__(self, reader: Reader, *, tokens: int, end: ThoughtEnd, tokenizer: Tokenizer) -> None:
        self._reader = reader
        self._left = tokens
        self._end = end
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._since: int | None = 0 if reader.in_thought else None  # tokens since the answer was last seen in a thought
        self._given = 0  # tokens of the answer in the prompt that the engine goes on from
        self._heard = False  # of the engine, so that it had its say on what was cached
        self._cached = 0
        self._most_cached = MAX_COUNT
        self.ended_thoughts = 0

    @property
    def reached(self) -> bool:
        """Whether the answer stands in a thought that may have no more tokens."""
        reader = self._reader
        return self._left <= 0 and not reader.ended and self.ended_thoughts < MAX_ENDED and reader.in_thought

    def read(self, chunk: Chunk) -> list[Delta]:
        """The deltas of the chunk's tokens, up to the last that may be."""
        deltas: list[Delta] = []
        for piece in _single(chunk):
            if self.reached:
                break
            read = self._reader.read(self._of_answer(piece))
            self._count(piece, read)
            deltas += read
        return deltas

    def _count(self, piece: Chunk, deltas: Sequence[Delta]) -> None:
        """What seemed to be a marker or a call, and was none, was thought too."""
        self._ids += self._known(piece)
        self._heard = True
        if self._since is not None:
            self._since += piece.tokens
        if any(type(delta) in _ANSWERS for delta in deltas):
            self._since = None
        if self._reader.in_thought:
            self._left -= self._since or 0
            self._since = 0

    def end_thought(self, max_tokens: int | None) -> list[Delta]:
        """Ends the thought: its end is read as if the engine had generated it. A second one is ended so that text must follow.
        Where the answer's tokens do not suffice for that, it is cut."""
        text = self._end.before_text if self.ended_thoughts else self._end.before_any
        ids = self._tokenizer.encode_after(text)
        self.ended_thoughts += 1
        if max_tokens is not None and len(self._ids) + len(ids) > max_tokens:
            return self._reader.read(Chunk(finish="length"))
        self._ids += ids
        self._since = None
        return self._reader.read(Chunk(text=text, tokens=len(ids), ids=ids))

    def _of_answer(self, chunk: Chunk) -> Chunk:
        """The chunk with the engine's counts as if it had made the whole answer at once."""
        usage = chunk.usage
        if usage is None:
            return chunk
        self._cached = min(usage.cached_tokens, self._most_cached)
        prompt, completion = usage.prompt_tokens - self._given, usage.completion_tokens + self._given
        return msgspec.structs.replace(chunk, usage=Usage(prompt, completion, self._cached, usage.reasoning_tokens))

    def rest(self, work: Work) -> Work | None:
        """What is left of the work; None where its tokens are used up."""
        used, sampling = len(self._ids), work.request.sampling
        self._given = used
        if self._heard:
            self._most_cached = self._cached
        left = None if work.max_tokens is None else work.max_tokens - used
        if left is not None and left <= 0:
            return None
        least = None if sampling.min_tokens is None else max(sampling.min_tokens - used, 0)
        return replace(
            work,
            request=replace(work.request, sampling=replace(sampling, min_tokens=least)),
            ids=(*work.ids, *self._ids),
            max_tokens=left,
            constraint=None if work.constraint is None else replace(work.constraint, thought_closer=None),
        )

    def _known(self, chunk: Chunk) -> tuple[int, ...]:
        if chunk.ids is not None:
            return chunk.ids
        return self._tokenizer.encode_after(chunk.text) if chunk.text else ()


def _single(chunk: Chunk) -> Iterator[Chunk]:
    """The chunk's tokens, each as a chunk of its own; the last has the rest of what the chunk says. Of a chunk that does not name
    its ids, or has text, nothing can be parted."""
    ids = chunk.ids
    if ids is None or len(ids) < 2 or chunk.text or len(ids) != chunk.tokens - (chunk.stop_id is not None):
        yield chunk
        return
    for at, token in enumerate(ids[:-1]):
        yield Chunk(tokens=1, ids=(token,), logprobs=chunk.logprobs[at : at + 1])
    last = len(ids) - 1
    yield msgspec.structs.replace(chunk, tokens=chunk.tokens - last, ids=ids[last:], logprobs=chunk.logprobs[last:])
