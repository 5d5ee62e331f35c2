"""The raw output as it comes, and the search for markers in it.

Invariant: text is consumed strictly from left to right; what is not yet certain stays in the buffer and is at most the longest
marker plus a bounded run of whitespace. A marker that is one token counts only where the token's id was seen, if ids are known.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

Kind = Literal["reasoning", "content", "arguments", "markup", "failure"]
"""What a consumed piece of the output was. Only tests look at it: together the pieces are the whole output."""

SPACE = " \t\n\r"
_ESCAPED = re.compile(r"\\?.", re.DOTALL)
_MAX_SPACE = 256  # where it must be looked through again with each piece of text


class Cursor:
    """A place in the output. `text[pos:]` is unread; `base` is the offset of `text[0]` in the whole output.

    `final` is set when nothing more comes, `cut` when that is because of the token limit. From `keep` on, read text is kept so
    that `rewind` can read it again.
    """

    __slots__ = (
        "_by_id",
        "_kept",
        "_kept_from",
        "_marks",
        "_proofs",
        "base",
        "cut",
        "final",
        "kept_at",
        "pos",
        "spelled_at",
        "text",
    )

    def __init__(self, by_id: Iterable[str] = ()) -> None:
        self.text = ""
        self.pos = 0
        self.base = 0
        self.final = False
        self.cut = False
        self.spelled_at: int | None = None
        self.kept_at: int | None = None
        self._by_id = frozenset(by_id)
        self._marks: set[int] = set()
        self._proofs: dict[str, int] = {}
        self._kept: list[str] = []
        self._kept_from = 0

    @property
    def offset(self) -> int:
        """Of the next unread character, in the whole output."""
        return self.base + self.pos

    def add(self, text: str) -> None:
        """More output."""
        if self.kept_at is not None:
            self._kept.append(self.text[self._kept_from : self.pos])
            self._kept_from = 0
        self.base += self.pos
        self.text = self.text[self.pos :] + text
        self.pos = 0

    def add_marker(self, text: str) -> None:
        """More output: a marker whose token was seen."""
        self._marks.add(self.base + len(self.text))
        self.add(text)

    def advance(self, to: int, kind: Kind) -> None:
        """Read up to index `to` of `text`."""
        self.pos = to

    def revise(self, start: int, stop: int, kind: Kind) -> None:
        """What was read from one offset to another was of this kind after all."""

    def skip(self, characters: str) -> bool:
        """Read a run of these characters as markup; False if nothing else is there yet."""
        text, at = self.text, self.pos
        while at < len(text) and text[at] in characters:
            at += 1
        self.advance(at, "markup")
        return at < len(text)

    def keep(self) -> None:
        """Keep what is read from here on; earlier text is forgotten."""
        self.kept_at = self.offset
        self._kept.clear()
        self._kept_from = self.pos

    def forget(self) -> None:
        """Stop keeping."""
        self.kept_at = None
        self._kept.clear()

    def kept(self) -> str:
        """The text from `kept_at` to the end of the buffer."""
        return "".join(self._kept) + self.text[self._kept_from :]

    def kept_marker(self, literal: str) -> bool:
        """Whether this marker stands anywhere in what was kept or is unread."""
        text, at = self.kept(), -1
        while (at := text.find(literal, at + 1)) >= 0:
            if self.kept_at is not None and (not self.by_id(literal) or self.kept_at + at + self._proof(literal) in self._marks):
                return True
        return False

    def rewind(self, offset: int) -> None:
        """Go back to an offset at or after `kept_at`, to read again from there."""
        if self.kept_at is None:
            raise ValueError("nothing was kept")
        if self._kept:
            self.text = self.kept()
            self.base = self.kept_at
            self._kept.clear()
            self._kept_from = 0
        self.pos = offset - self.base

    def by_id(self, literal: str) -> bool:
        """Whether this marker is known by a token's id alone: its own, or that of one in it."""
        return self._proof(literal) >= 0

    def is_marker(self, literal: str, at: int) -> bool:
        """Whether this text at index `at`, which spells a marker, is the marker."""
        proof = self._proof(literal)
        return proof < 0 or self.base + at + proof in self._marks

    def _proof(self, literal: str) -> int:
        """Where in the literal a token stands whose id proves it; -1 where none does."""
        known = self._proofs.get(literal)
        if known is None:
            found = [at for token in self._by_id if (at := literal.find(token)) >= 0]
            known = self._proofs[literal] = min(found, default=-1)
        return known

    def match(self, at: int, literals: Sequence[str]) -> str | None:
        """The marker that stands exactly at index `at`; "" if more text must decide; None if there is none. Text that was cut
        stays undecided."""
        text = self.text
        waiting = False
        open_ended = not self.final or self.cut
        for literal in literals:
            if text.startswith(literal, at):
                if self.is_marker(literal, at):
                    return "" if waiting else literal
            elif open_ended and literal.startswith(text[at:]):
                waiting = True
        return "" if waiting else None


def after_space(text: str, at: int) -> int:
    """The index after whitespace. A long run is no markup."""
    stop = min(len(text), at + _MAX_SPACE)
    while at < stop and text[at] in SPACE:
        at += 1
    return at


def longest_first(literals: Iterable[str]) -> tuple[str, ...]:
    """The order in which `Cursor.match` must try literals, without empty ones and repeats."""
    return tuple(sorted({literal for literal in literals if literal}, key=lambda literal: (-len(literal), literal)))


class Matcher:
    """Finds the first of several literals, or the place from where on the text may be the beginning of one.

    The pattern has no unbounded repetition: at each place it looks at most at the longest literal.
    """

    __slots__ = ("_last", "_noted", "_open")

    def __init__(self, literals: Iterable[str], noted: Iterable[str] = ()) -> None:
        self._noted = frozenset(noted)  # the cursor notes where these are spelled without their token
        ordered = longest_first(literals)
        whole = "|".join(re.escape(literal) for literal in ordered) or r"(?!)"
        begun = "|".join(_begun(literal) for literal in ordered) or r"(?!)"
        self._last = re.compile(f"({whole})")
        self._open = re.compile(rf"(?:{begun})\Z|({whole})")

    def find(self, cursor: Cursor, at: int) -> tuple[int, str]:
        """The index and text of the first marker at or after `at`; or ("" as its text) the index up to which there is none."""
        text = cursor.text
        search = (self._last if cursor.final else self._open).search
        while True:
            found = search(text, at)
            if found is None:
                return len(text), ""
            at = found.start()
            literal: str | None = found[1]
            if literal is None:
                return at, ""
            if cursor.is_marker(literal, at):
                return at, literal
            if cursor.spelled_at is None and literal in self._noted:
                cursor.spelled_at = cursor.base + at
            at += 1


def _begun(literal: str) -> str:
    """A pattern for each beginning of a literal, but not for the whole."""
    parts = _ESCAPED.findall(re.escape(literal[:-1]))
    return "(?:".join(parts) + ")?" * (len(parts) - 1) if parts else r"(?!)"
