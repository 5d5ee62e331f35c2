"""A thought that may have so many tokens: where it has them the gateway ends it, and the engine goes on from there."""

from collections.abc import Iterator, Sequence

import msgspec

from engines.base import Chunk
from gateway.prompt.thought_end import ThoughtEnd
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import ContentText, Delta, ToolCallStart
from gateway.transcript import Transcript

_ANSWERS = frozenset({ContentText, ToolCallStart})
MAX_ENDED = 8  # of one answer: a model that thinks again and again costs a call each time


class ThoughtLimit:
    """Reads chunks up to the token with which the answer's thoughts have `tokens` of them. What comes after it is not read."""

    def __init__(self, transcript: Transcript, *, tokens: int, end: ThoughtEnd, tokenizer: Tokenizer) -> None:
        self.transcript = transcript
        self._left = tokens
        self._end = end
        self._tokenizer = tokenizer
        self._since: int | None = 0 if transcript.in_thought else None  # tokens since the answer was last seen in a thought
        self.ended_thoughts = 0

    @property
    def reached(self) -> bool:
        """Whether the answer stands in a thought that may have no more tokens."""
        answer = self.transcript
        return self._left <= 0 and not answer.ended and self.ended_thoughts < MAX_ENDED and answer.in_thought

    def read(self, chunk: Chunk) -> list[Delta]:
        """The deltas of the chunk's tokens, up to the last that may be."""
        deltas: list[Delta] = []
        for piece in _single(chunk):
            if self.reached:
                break
            before = self.transcript.counted
            read = self.transcript.read(piece)
            self._count(self.transcript.counted - before, read)
            deltas += read
        return deltas

    def _count(self, tokens: int, deltas: Sequence[Delta]) -> None:
        """What seemed to be a marker or a call, and was none, was thought too."""
        if self._since is not None:
            self._since += tokens
        if any(type(delta) in _ANSWERS for delta in deltas):
            self._since = None
        if self.transcript.in_thought:
            self._left -= self._since or 0
            self._since = 0

    def end_thought(self, max_tokens: int | None) -> list[Delta]:
        """Ends the thought: its end is read as if the engine had generated it. A second one is ended so that text must follow.
        Where the answer's tokens do not suffice for that, it is cut."""
        text = self._end.before_text if self.ended_thoughts else self._end.before_any
        ids = self._tokenizer.encode_after(text)
        self.ended_thoughts += 1
        if max_tokens is not None and self.transcript.tokens + len(ids) > max_tokens:
            return self.transcript.cut()
        self._since = None
        return self.transcript.add(text, ids)


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
