"""The end of what a model wrote, kept while its answer comes, so that a fault in it can be looked at afterwards.

Invariant: bounded, whatever the chunks: so many pieces and characters of an answer, and as many faults. On the hot path, so that
a piece costs two additions. PURE.
"""

from collections import deque

from gateway.request import Fault, ParseFailure

CONTEXT_CHARS = 1000  # on each side of a fault
MOST_FAULTS = 4  # of one answer
_PIECES = 256
_PIECE_CHARS = 2048


class Tail:
    """What was written last, and the faults that were found in it."""

    __slots__ = ("_end", "_pieces", "faults")

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._pieces: deque[str] = deque(maxlen=_PIECES)
        self._end = 0

    def add(self, text: str) -> None:
        """The next piece."""
        self._end += len(text)
        self._pieces.append(text if len(text) <= _PIECE_CHARS else text[-_PIECE_CHARS:])

    def found(self, failure: ParseFailure, *, placed: bool = True) -> None:
        """Keeps a fault with the text around its offset, as far as that has come. One that is not `placed` has none, and is of
        the end; so is one whose place is no more kept."""
        if len(self.faults) >= MOST_FAULTS:
            return
        text = "".join(self._pieces)
        begins = self._end - len(text)
        at = min(failure.offset - begins, len(text)) if placed and failure.offset >= begins else len(text)
        first, last = max(0, at - CONTEXT_CHARS), at + CONTEXT_CHARS
        offset = failure.offset if placed else None
        self.faults.append(Fault(failure.kind, offset, failure.recovered, text[first:last], at - first, begins + first > 0))
