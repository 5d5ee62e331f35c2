"""What every parser of model output is made of: text and ids in, deltas out, whatever happens in between.

Invariant: an automaton never raises, whatever the model wrote; a fault of ours is counted `internal`, and the rest is content.
"""

from collections.abc import Callable, Sequence

from gateway.formats.base import ParseOptions
from gateway.formats.calls import Calls, Output
from gateway.formats.cursor import SPACE, Cursor
from gateway.formats.program import Program
from gateway.request import Delta, FailureKind, Finish, FinishReason, ParseFailure, Usage


class Automaton:
    """One answer's parser: a state that reads what it can, and True where another has taken over.

    What is derived from it sets `_state`, and says in `_in_thought` whether that is a thought, in `_close` what the end of the
    output leaves open (True if there is text to read again) and in `_give_up` what to do with what was begun before a fault.
    """

    def __init__(self, program: Program, options: ParseOptions, cursor: Cursor | None = None) -> None:
        tokens = {*(marker.text for marker in program.spec.markers), *program.spec.tokens}
        self._markers = {token: text for text, token in options.marker_ids.items() if text in tokens}
        self._cursor = cursor or Cursor(self._markers.values())
        self._output = Output()
        self._calls = Calls(options, self._output, self._cursor, program.spec.call_ids, program.held_chars)
        self._has_tools = bool(options.tools)
        self._state: Callable[[], bool] = self._all_content

    @property
    def thinking(self) -> bool:
        """Whether what was read ends within a thought, and neither in what may be a marker nor in what may be a call."""
        cursor = self._cursor
        return self._in_thought() and not cursor.text[cursor.pos :].strip(SPACE)

    def feed(self, text: str) -> list[Delta]:
        """The deltas that this text completes."""
        self._cursor.add(text)
        self._run()
        return self._output.take()

    def feed_tokens(self, tokens: Sequence[tuple[int, str]]) -> list[Delta]:
        """The deltas that these tokens complete. A marker whose text the engine hid is put back."""
        cursor = self._cursor
        for token, text in tokens:
            marker = self._markers.get(token)
            if marker is None:
                cursor.add(text)
            else:
                cursor.add(text.removesuffix(marker))
                cursor.add_marker(marker)
        self._run()
        return self._output.take()

    def finish(self, reason: FinishReason, usage: Usage) -> list[Delta]:
        """The rest, and `Finish`."""
        self._cursor.final = True
        self._cursor.cut = reason == "length"
        self._run()
        while self._close():
            self._run()
        if self._calls.whole == 0 and self._has_tools and self._cursor.spelled_at is not None:
            self._fail("special_tokens_missing", self._cursor.spelled_at)
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if self._calls.whole else "stop"
        self._output.add(Finish(reason, usage))
        return self._output.take()

    def _run(self) -> None:
        try:
            while self._state():
                pass
        except Exception:  # a fault of ours must cost the client no text: it is counted, and the rest is content
            self._calls.abandon("internal", self._cursor.offset)
            self._give_up()
            self._state = self._all_content
            self._all_content()

    def _in_thought(self) -> bool:
        raise NotImplementedError

    def _close(self) -> bool:
        raise NotImplementedError

    def _give_up(self) -> None:
        raise NotImplementedError

    def _fail(self, kind: FailureKind, offset: int, *, recovered: bool = True) -> None:
        self._output.add(ParseFailure(kind, None, offset, recovered))

    def _all_content(self) -> bool:
        cursor = self._cursor
        self._output.content(cursor.text[cursor.pos :])
        cursor.advance(len(cursor.text), "content")
        return False

    def _text(self, to: int) -> None:
        """The text up to this index is content."""
        cursor = self._cursor
        if to > cursor.pos:
            self._output.content(cursor.text[cursor.pos : to])
            cursor.advance(to, "content")
