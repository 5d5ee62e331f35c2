"""Stop tokens in an answer, where they have no place: the engine, or what reads it, missed the turn's end.

Where the engine streams ids a stop token's id tells, whatever the text spells. Elsewhere only its text can, and a model that was
asked to write `</s>` looks the same. The answer is never changed: leaks are counted.
"""

import re
from collections.abc import Callable, Collection, Sequence

from engines.base import Chunk
from gateway.request import ContentText, Delta, ReasoningText, ToolCallArguments

_TEXTS = (ContentText, ReasoningText, ToolCallArguments)

Leaks = Callable[[Chunk, Sequence[Delta]], int]
"""How many stop tokens this chunk and what was read from it complete."""


def leaked_ids(stop_ids: frozenset[int]) -> Leaks:
    """Counts the stop ids among a chunk's ids."""
    clean = stop_ids.isdisjoint

    def count(chunk: Chunk, _deltas: Sequence[Delta]) -> int:
        ids = chunk.ids
        return 0 if ids is None or clean(ids) else sum(token in stop_ids for token in ids)

    return count


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

    def __call__(self, _chunk: Chunk, deltas: Sequence[Delta]) -> int:
        """How many these deltas complete."""
        found = 0
        for delta in deltas:
            if isinstance(delta, _TEXTS) and (self._held or self._begun(delta.text)):
                place = (type(delta), delta.index if isinstance(delta, ToolCallArguments) else 0)
                found += self._in(self._held + delta.text if place == self._held_of else delta.text)
                self._held_of = place
        return found

    def _in(self, text: str) -> int:
        """How many this text holds. Its end, where it may be the beginning of another, is kept."""
        found = self._all(text)
        rest = text.rpartition(found[-1])[2] if found else text
        begins = (rest[at.start() :] for at in self._first.finditer(rest, max(len(rest) - len(self._texts[0]) + 1, 0)))
        self._held = next((end for end in begins if any(each.startswith(end) for each in self._texts)), "")
        return len(found)
