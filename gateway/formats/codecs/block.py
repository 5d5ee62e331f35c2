"""What the readers of blocks have in common: how their states follow each other, text between calls, and how a block ends."""

from collections.abc import Callable

from gateway.formats.calls import Calls
from gateway.formats.cursor import SPACE, Cursor, Matcher
from gateway.formats.spec import Progress

_MAX_BETWEEN = 256  # characters between two calls; after more the block has ended

State = Callable[[Cursor], Progress | None]


class BlockReader:
    """Reads one block. Each state is a method; None from it means that another has taken over."""

    _state: State

    def step(self, cursor: Cursor) -> Progress:
        """Read on."""
        while True:
            progress = self._state(cursor)
            if progress is not None:
                return progress


def text_between(cursor: Cursor, marks: Matcher, opener: str, calls: Calls) -> bool | None:
    """Whether the text at the cursor stands between two calls, as the next one's opener is the first of the marks after it, and
    comes soon; it is content then. None if more text must decide."""
    at, found = marks.find(cursor, cursor.pos)
    if at - cursor.pos > _MAX_BETWEEN:
        return False
    if not found:
        return False if cursor.final else None
    if found != opener:
        return False
    calls.between(at)
    return True


def end_of_block(cursor: Cursor, closer: str, calls: Calls) -> Progress:
    """The closer, or anything else where the model left it out; nothing where the block has none."""
    if closer:
        cursor.skip(SPACE)
        found = cursor.match(cursor.pos, (closer,))
        if found == "":
            return "more"
        if found is None and not calls.stopped_at(closer):
            calls.fail("missing_closer", cursor.offset, recovered=True)
        elif found:
            cursor.advance(cursor.pos + len(closer), "markup")
    calls.end_open()
    return "done"
