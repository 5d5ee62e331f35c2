"""Tokens in an answer that have no place there. The answer is never changed: they are counted.

`stop_leak`, a stop token: the engine, or what reads it, missed the turn's end. Where the engine streams ids a stop token's id
tells, whatever the text spells. Elsewhere only its text can, so that a model that explains what `</s>` is, in ordinary tokens, is
counted too: on such an engine the count says where to look, not that something is wrong.

`unknown_token`, an id that the vocabulary lacks, so that it has no text: models are often padded, and no sound one generates such
an id.
"""

import re
from collections.abc import Callable, Collection, Sequence

from engines.base import Chunk
from gateway.request import ContentText, Delta, FailureKind, ReasoningText, ToolCallArguments

_STOP_LEAK: tuple[FailureKind] = ("stop_leak",)
_UNKNOWN_TOKEN: tuple[FailureKind] = ("unknown_token",)
_TEXTS = (ContentText, ReasoningText, ToolCallArguments)

Leaks = Callable[[Chunk, Sequence[Delta]], Sequence[FailureKind]]
"""The failures, one for each such token, that this chunk and what was read from it complete."""


def leaked_ids(stop_ids: frozenset[int], vocab_size: int) -> Leaks:
    """Looks at a chunk's ids."""
    clean = stop_ids.isdisjoint

    def leaks(chunk: Chunk, _deltas: Sequence[Delta]) -> Sequence[FailureKind]:
        ids = chunk.ids
        if not ids or (clean(ids) and max(ids) < vocab_size):
            return ()
        stops = sum(token in stop_ids for token in ids)
        unknown = sum(token >= vocab_size for token in ids)
        return [*_STOP_LEAK * stops, *_UNKNOWN_TOKEN * unknown]

    return leaks


class LeakedTexts:
    """Counts the spellings of stop tokens in an answer's text, thought and arguments, however they are split."""

    def __init__(self, texts: Collection[str]) -> None:
        """`texts` has at least one, and none is empty."""
        self._texts = sorted(texts, key=len, reverse=True)
        self._all = re.compile("|".join(map(re.escape, self._texts))).findall
        self._first = re.compile(f"[{re.escape(''.join({text[0] for text in texts}))}]")
        self._begun = self._first.search
        self._held = ""
        self._held_of: tuple[object, int] | None = None

    def __call__(self, _chunk: Chunk, deltas: Sequence[Delta]) -> Sequence[FailureKind]:
        """Looks at these deltas."""
        found = 0
        for delta in deltas:
            if isinstance(delta, _TEXTS) and (self._held or self._begun(delta.text)):
                place = (type(delta), delta.index if isinstance(delta, ToolCallArguments) else 0)
                found += self._in(self._held + delta.text if place == self._held_of else delta.text)
                self._held_of = place
        return _STOP_LEAK * found

    def _in(self, text: str) -> int:
        """How many this text holds. Its end, where it may be the beginning of another, is kept."""
        found = self._all(text)
        rest = text.rpartition(found[-1])[2] if found else text
        begins = (rest[at.start() :] for at in self._first.finditer(rest, max(len(rest) - len(self._texts[0]) + 1, 0)))
        self._held = next((end for end in begins if any(each.startswith(end) for each in self._texts)), "")
        return len(found)
