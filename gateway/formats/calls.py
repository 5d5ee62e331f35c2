"""From what a codec reads to deltas: call numbers, ids, unknown tools, validation, deltas held back, and text that is no call.

Invariant: a call that was started ends with `ToolCallEnd` or is abandoned with a failure; indices and ids are never used twice
in what the client sees; text never stands between a call's start and its end.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

from msgspec.structs import replace

from gateway.formats.base import ParseOptions
from gateway.formats.cursor import SPACE, Cursor
from gateway.formats.schema import Parameters
from gateway.request import (
    ContentText,
    Delta,
    FailureKind,
    ParseFailure,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


class Output:
    """Deltas in the order of the model's text, neighbours of one text merged when they are taken.

    A branch holds deltas back until it is known whether they count.
    """

    __slots__ = ("_branches", "_deltas")

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._branches: list[list[Delta]] = []

    def add(self, delta: Delta) -> None:
        """One delta, as it is."""
        self._deltas.append(delta)

    def content(self, text: str) -> None:
        """Visible text."""
        if text:
            self._deltas.append(ContentText(text))

    def reasoning(self, text: str) -> None:
        """Thought."""
        if text:
            self._deltas.append(ReasoningText(text))

    def branch(self) -> None:
        """Hold back what follows."""
        self._branches.append(self._deltas)
        self._deltas = []

    def commit(self) -> None:
        """What was held back counts."""
        held, self._deltas = self._deltas, self._branches.pop()
        self._deltas += held

    def commit_oldest(self) -> None:
        """What the outermost branch held back counts; a branch within it stays."""
        outer = self._branches.pop(0)
        if self._branches:
            outer += self._branches[0]
            self._branches[0] = outer
        else:
            outer += self._deltas
            self._deltas = outer

    def drop(self, *, keep_failures: bool) -> None:
        """What was held back does not count; its failures may."""
        held, self._deltas = self._deltas, self._branches.pop()
        if keep_failures:
            self._deltas += [delta for delta in held if type(delta) is ParseFailure]

    def take(self) -> list[Delta]:
        """All that counts so far."""
        if not self._branches:
            deltas, self._deltas = self._deltas, []
        else:
            deltas, self._branches[0] = self._branches[0], []
        return deltas if len(deltas) < 2 else merged(deltas)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas with neighbouring pieces of one text as one."""
    result: list[Delta] = []
    pieces: list[str] = []
    last: ReasoningText | ContentText | ToolCallArguments | None = None
    for delta in [*deltas, None]:
        if last is not None:
            if type(delta) is type(last) and getattr(delta, "index", None) == getattr(last, "index", None):
                pieces.append(delta.text)
                continue
            result.append(replace(last, text="".join(pieces)) if len(pieces) > 1 else last)
            last = None
        if isinstance(delta, ReasoningText | ContentText | ToolCallArguments):
            last, pieces = delta, [delta.text]
        elif delta is not None:
            result.append(delta)
    return result


def nine_alnum(call_id: str) -> str:
    """Nine letters and digits, the same for the same id."""
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def is_nine_alnum(call_id: str) -> bool:
    """Whether this is nine letters and digits."""
    return len(call_id) == 9 and call_id.isascii() and call_id.isalnum()


class Calls:
    """The calls of one answer.

    `index` is the number of the open call, or of the next. `raw_from` is the offset from where on the text is of no whole call:
    it becomes content if the block is damaged. `pinned` while an earlier offset may be needed again.
    """

    def __init__(
        self,
        options: ParseOptions,
        output: Output,
        cursor: Cursor,
        policy: Literal["random", "native", "nine_alnum"],
        held_chars: int,
    ) -> None:
        self.index = 0
        self.whole = 0
        self.raw_from = 0
        self.pinned = False
        self.is_open = False
        self.held_chars = held_chars
        self.names = frozenset(tool.name for tool in options.tools)
        self._stops = options.stops
        self._output = output
        self._cursor = cursor
        self._policy = policy
        self._hold = options.hold_arguments
        self._new_id: Callable[[], str] = options.new_call_id
        self._schemas = {tool.name: tool.parameters for tool in options.tools}
        self._parameters: dict[str, Parameters] = {}
        self._pieces: list[str] | None = None
        self._mismatch = False
        self._name = ""
        self._before, self._prefix = "", ""  # the text from `raw_from` to the block's opener, until it is known to be a name
        self._ids: list[str] = []  # of the calls before `index`
        self._asides: list[tuple[int, str]] = []  # within the open call, or the one that begins, each with its offset

    @property
    def sent(self) -> bool:
        """Whether the client has deltas of the open call."""
        return self.is_open and not self._hold

    def stopped_at(self, closer: str) -> bool:
        """Whether the output may well have ended with this marker, as the engine stops there and does not show it."""
        cursor = self._cursor
        return closer in self._stops and cursor.final and not cursor.cut and cursor.pos == len(cursor.text)

    def parameters(self, name: str) -> Parameters:
        """What the tool's schema says, read once an answer."""
        known = self._parameters.get(name)
        if known is None:
            known = self._parameters[name] = Parameters(self._schemas.get(name))
        return known

    def begin(self, before: str = "", prefix: str = "") -> None:
        """A block may begin at the cursor: from here on its text is kept. `before` its opener stands this text, which may be
        `prefix` and the first call's name."""
        self.raw_from = self._cursor.offset
        self._before, self._prefix = before.rstrip(SPACE), prefix
        if not self.pinned:
            self._cursor.keep()

    def name_before(self, name: str | None) -> None:
        """The block's first call has this name, or there is no call: what stood before the block's opener is content where it is
        not the name, which may be its own namespace."""
        text, self._before = self._before, ""
        if text and (name is None or text.strip().removeprefix(self._prefix) not in (name, f"{name}.{name}")):
            self._output.content(text)
            self._cursor.revise(self.raw_from, self.raw_from + len(text), "content")
            self.raw_from += len(text)

    def start(self, name: str, offset: int, native_id: str | None = None) -> None:
        """The next call's name is known; it stands at `offset`."""
        self.name_before(name)
        del self._ids[self.index :]
        kept = self._policy == "native" or (self._policy == "nine_alnum" and is_nine_alnum(native_id or ""))
        own = native_id if kept and native_id not in self._ids else None
        call_id = own or (nine_alnum(self._new_id()) if self._policy == "nine_alnum" else self._new_id())
        if self._hold:
            self._output.branch()
        self._ids.append(call_id)
        self.is_open = True
        self._mismatch = False
        self._name = name
        self._pieces = [] if self.parameters(name).validates else None
        self._output.add(ToolCallStart(self.index, call_id, name))
        if name not in self.names:
            self.fail("unknown_tool", offset, recovered=True)

    def arguments(self, text: str) -> None:
        """The next piece of the open call's arguments."""
        if text:
            if self._pieces is not None:
                self._pieces.append(text)
            self._output.add(ToolCallArguments(self.index, text))

    def fail(self, kind: FailureKind, offset: int, *, recovered: bool) -> None:
        """Count something about the open call, or the one that begins."""
        self._mismatch = self._mismatch or kind == "schema_mismatch"
        self._output.add(ParseFailure(kind, self.index, offset, recovered))

    def aside(self, text: str, offset: int) -> None:
        """Text within a call that says nothing of it. It is content after the call's end; where the call is none, all of its
        text is."""
        self._asides.append((offset, text))

    def between(self, to: int) -> None:
        """The text up to this index stands between two calls of a block, or before the first: it is content."""
        self.end_open()
        self.name_before(None)
        self.fail("bad_header", self._cursor.offset, recovered=True)
        self._output.content(self._cursor.text[self._cursor.pos : to])
        self._cursor.advance(to, "content")
        self.begin()

    def end(self) -> None:
        """The open call is whole; the text after it begins at the cursor."""
        if self._pieces is not None and not self._mismatch and not self.parameters(self._name).accepts("".join(self._pieces)):
            self.fail("schema_mismatch", self.raw_from, recovered=True)
        self._output.add(ToolCallEnd(self.index))
        if self._hold:
            self._output.commit()
        for offset, text in self._asides:
            self._output.content(text)
            self._cursor.revise(offset, offset + len(text), "content")
        self._close()
        self.index += 1
        self.whole += 1
        self.begin()

    def end_open(self) -> None:
        """The open call is whole, if there is one."""
        if self.is_open:
            self.end()

    def abandon(self, kind: FailureKind, offset: int) -> None:
        """The open call, or the one that began, is none."""
        if self.is_open and self._hold:
            self._output.drop(keep_failures=True)
        self._output.add(ParseFailure(kind, self.index if self.is_open else None, offset, False))
        self.index += self.sent
        self._close()

    def restore(self, index: int, whole: int) -> None:
        """Forget the calls since then, and the open one."""
        if self.is_open and self._hold:
            self._output.drop(keep_failures=False)
        self.index, self.whole = index, whole
        self._close()

    def _close(self) -> None:
        self.is_open = False
        self._pieces = None
        self._asides.clear()
