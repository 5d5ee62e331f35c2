"""The automaton behind every format: thought, content, blocks of calls, and what happens when they are damaged.

Invariant: any output, in any split, gives the same deltas once neighbours are merged, and never raises. Each character is read
once, or once more where a suspicion proves wrong.

What is no call: a block that cannot be read, or that the output leaves open, is content from its opener (and the newlines before
it) on, with a failure. Of a call whose deltas were already sent, `ToolCallEnd` never comes: whoever folds the deltas into a whole
answer drops it. Its text is sent as content all the same, but for one case: a call cut by the token limit is not sent a second
time, as the client knows from `length` that it is not whole. Whole answers must therefore be parsed with `hold_arguments`, which
sends nothing of a call before its end, so that the text of a cut call is content there.

A call inside the thought is a suspicion: it is read ahead with its deltas held back. If the thought's closer follows, or it
cannot be read, it was thought; if the output ends first, the thought had ended at its opener.
"""

from dataclasses import dataclass

from gateway.formats.automaton import Automaton
from gateway.formats.base import ParseOptions
from gateway.formats.cursor import SPACE, Cursor
from gateway.formats.program import Program
from gateway.formats.spec import Block, Damage, Marker, Reader, Reasoning

_MAX_BLANK = 256  # a longer run of whitespace is text
_NEVER = 1 << 62
_NO_THOUGHT = Reasoning(Marker(""), Marker(""))


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """A call inside the thought: where it begins, and the counts to go back to."""

    offset: int
    text_from: int
    index: int
    whole: int


class Machine(Automaton):
    """One answer's parser."""

    def __init__(self, program: Program, options: ParseOptions, cursor: Cursor | None = None) -> None:
        super().__init__(program, options, cursor)
        self._program = program
        self._spec = program.spec
        self._thinks = program.spec.reasoning or _NO_THOUGHT
        self._reader: Reader
        self._has_closer = False
        self._suspicion: _Suspicion | None = None
        self._trusted_from = 0  # an opener in the thought before this offset begins no call
        self._raw_until = 0  # text of a damaged block up to this offset is content, whatever it spells
        self._thought_from = 0
        self._blank = True  # only whitespace so far since the last marker
        self._after_marker = False
        self._fresh = True  # a marker stood right before: newlines are markup
        self._may_think = program.spec.reasoning is not None
        self._state = self._content if program.spec.markers else self._all_content
        self._start(options.prompt_tail)

    def _start(self, prompt_tail: str) -> None:
        """Has the template opened the thought, or begun the first marker?"""
        self._fresh = False
        if self._spec.prompt_begins and prompt_tail.endswith(self._spec.prompt_begins):
            self._state = self._begun
        if not self._may_think:
            return
        start, said = self._thinks.start(prompt_tail)
        self._may_think = start == "unopened"
        if start == "inside":
            self._state = self._thought
            self._fresh = not said.strip(SPACE)

    def _give_up(self) -> None:
        if self._state == self._call:
            self._to_raw(_NEVER)
        if self._suspicion is not None:
            self._believe()

    # The thought.

    def _in_thought(self) -> bool:
        return self._state == self._thought

    def _thought(self) -> bool:
        reasoning, cursor, closers = self._thinks, self._cursor, self._program.thought_closers
        if self._fresh and not self._begin_thought(reasoning.trim):
            return False
        at, literal = cursor.pos, ""
        while True:
            at, literal = self._program.in_thought.find(cursor, at)
            if not literal or literal in closers or cursor.base + at >= self._trusted_from:
                break
            at += 1
        text = cursor.text[cursor.pos : at]
        certain = at
        if literal or not cursor.final:
            certain -= min(len(text) - len(text.rstrip(reasoning.trim)), _MAX_BLANK)
        self._output.reasoning(cursor.text[cursor.pos : certain])
        cursor.advance(certain, "reasoning")
        if not literal:
            return False
        if literal in self._program.openers:
            self._suspect(cursor.base + at)
            return True
        if literal not in closers:
            self._fail("implicit_reasoning_end", cursor.base + at)
            self._to_content()
            return True
        cursor.advance(at + len(literal), "markup")
        self._to_content()
        return True

    def _begin_thought(self, trim: str) -> bool:
        """Newlines at its beginning, and an opener that repeats the template's, are markup. False if more text must decide."""
        cursor = self._cursor
        cursor.skip(trim)
        repeated = cursor.match(cursor.pos, self._program.thought_openers)
        if repeated == "" and not cursor.final:
            return False
        if repeated:
            self._fail("stray_marker", cursor.offset)
            cursor.advance(cursor.pos + len(repeated), "markup")
            return self._begin_thought(trim)
        self._fresh = False
        return True

    def _to_content(self) -> None:
        """Content begins after a marker."""
        self._state = self._content
        self._blank = self._after_marker = self._fresh = True

    # A call inside the thought.

    def _suspect(self, opener: int) -> None:
        """Read on as if the thought had ended here, with all deltas held back."""
        cursor = self._cursor
        cursor.keep()
        self._calls.pinned = True
        self._suspicion = _Suspicion(opener, cursor.offset, self._calls.index, self._calls.whole)
        self._output.branch()
        self._fail("implicit_reasoning_end", opener)
        self._to_content()

    def _believe(self) -> None:
        """The thought had ended."""
        self._suspicion = None
        self._calls.pinned = False
        self._output.commit_oldest()
        if self._state != self._call:
            self._cursor.forget()

    def _doubt(self, suspicion: _Suspicion, trusted_from: int, *, counted: bool) -> None:
        """It was thought: read it again as such. An opener before `trusted_from` begins no call this time."""
        self._suspicion = None
        self._calls.restore(suspicion.index, suspicion.whole)
        self._calls.pinned = False
        self._output.drop(keep_failures=False)
        if counted:
            self._fail("call_in_reasoning", suspicion.offset)
        self._cursor.rewind(suspicion.text_from)
        self._cursor.forget()
        self._trusted_from = trusted_from
        self._fresh = False
        self._state = self._thought

    def _suspected(self, offset: int) -> _Suspicion | None:
        """The suspicion that still holds at this offset: a call that grows too large is believed."""
        if self._suspicion is not None and offset - self._suspicion.offset > self._program.held_chars:
            self._believe()
        return self._suspicion

    # Content.

    def _content(self) -> bool:
        cursor = self._cursor
        if self._suspicion is not None:
            self._suspected(cursor.offset)
        if self._fresh:
            self._fresh = not cursor.skip("\n")
        begin = cursor.pos
        at, literal = (self._program.at_start if self._blank else self._program.in_content).find(cursor, begin)
        text = cursor.text[begin:at]
        if literal in self._program.starters and (text.strip(SPACE) or len(text) >= _MAX_BLANK):
            at, literal = self._program.in_content.find(cursor, begin)
            text = cursor.text[begin:at]
        if self._blank and len(text) < _MAX_BLANK and (not text.strip(SPACE) or self._names_call(text, literal)):
            return self._blank_content(at, literal)
        if text:
            self._blank = self._may_think = False
        if literal:
            return self._marker(at, literal, self._before_call(begin, at))
        self._text(at if cursor.final else self._before_call(begin, at))
        return False

    def _names_call(self, text: str, literal: str) -> bool:
        """Whether this text since the last marker is, or may be, the name of the call that follows it."""
        prefix, program = self._spec.name_before_call, self._program
        if prefix is None or len(text.split()) != 1 or text[-1].isspace():
            return False
        word = text.strip()
        if not literal:
            return not self._cursor.final and (word.startswith(prefix) or prefix.startswith(word))
        if literal in program.named:
            return word.startswith(prefix) and word.removeprefix(prefix) in self._calls.names
        return word.startswith(prefix) and literal in program.openers  # the call itself tells whether it is its name

    def _before_call(self, begin: int, at: int) -> int:
        """The index at which the text before a call ends, as the template writes newlines between them."""
        end = at
        while end > begin and at - end < self._spec.newlines_before_call and self._cursor.text[end - 1] == "\n":
            end -= 1
        return end

    def _blank_content(self, at: int, literal: str) -> bool:
        """Only whitespace since the last marker: it is markup if a marker follows, or came before and nothing follows."""
        cursor = self._cursor
        if literal:
            return self._marker(at, literal, cursor.pos)
        if cursor.final:
            if self._after_marker:
                cursor.advance(at, "markup")
            else:
                self._text(at)
        return False

    def _marker(self, at: int, literal: str, text_to: int) -> bool:
        """A marker in content at index `at`; the text before it ends at `text_to`."""
        cursor, program = self._cursor, self._program
        if literal in program.openers or literal in program.starters:
            return self._opener(at, literal, text_to)
        if literal in program.thought_openers and (self._may_think or self._thinks.repeats) and self._blank:
            if self._suspicion is not None:
                self._believe()  # no thought begins within a thought
            self._thought_from = cursor.base + at
            self._may_think = False
            self._fresh = True
            self._state = self._thought
        elif literal in program.thought_closers and (suspicion := self._suspected(cursor.base + at)):
            self._doubt(suspicion, cursor.base + at, counted=True)
            return True
        elif any(literal == marker.text for marker in self._spec.transparent):
            self._text(text_to)
            self._to_content()
        else:
            return self._stray(at, literal)
        cursor.advance(at + len(literal), "markup")
        return True

    def _stray(self, at: int, literal: str) -> bool:
        """A marker out of place is text."""
        self._blank = self._may_think = False
        self._text(at)
        self._fail("stray_marker", self._cursor.base + at)
        self._text(at + len(literal))
        return True

    def _opener(self, at: int, literal: str, text_to: int) -> bool:
        """A block begins, if it is one."""
        cursor, program = self._cursor, self._program
        starter = program.starters.get(literal)
        block, bare = (starter, True) if starter is not None else program.openers[literal]
        told = block.told and not bare
        begins = block.codec.begins(cursor, at + len(literal) * told, self._calls.names) if bare or told else True
        if begins:
            self._begin_block(block, at, text_to, "" if bare else literal, counted=starter is None)
            return True
        if begins is None:
            self._text(text_to)
            return False
        if starter is None and not told:
            return self._stray(at, literal)
        self._blank = self._may_think = False  # an answer that begins like a call
        if told:
            self._text(at + len(literal))
        return True

    def _begun(self) -> bool:
        """After what the prompt has of the first marker: the rest of it, a block that its opener begins, or text."""
        cursor, program, begun = self._cursor, self._program, self._spec.prompt_begins
        rests = tuple(marker.text.removeprefix(begun) for marker in self._spec.transparent if marker.text.startswith(begun))
        rest = cursor.match(cursor.pos, rests)
        if rest == "" and not cursor.final:
            return False
        block, _ = program.openers.get(begun, (None, False))
        begins = block is not None and not rest and block.codec.begins(cursor, cursor.pos, self._calls.names)
        if begins is None:
            return False
        self._state = self._content
        if rest:
            cursor.advance(cursor.pos + len(rest), "markup")
            self._to_content()
        elif begins and block is not None:
            self._begin_block(block, cursor.pos, cursor.pos, "", counted=False)
        return True

    def _begin_block(self, block: Block, at: int, text_to: int, opener: str, *, counted: bool) -> None:
        """Reads on as a block from index `at`; without its `opener` that is counted, unless it may be so."""
        cursor, calls = self._cursor, self._calls
        bare = not opener
        self._text(text_to)
        calls.begin(cursor.text[cursor.pos : at], self._spec.name_before_call or "")
        if bare and counted:
            calls.fail("missing_opener", cursor.base + at, recovered=True)
        cursor.advance(at + len(opener), "markup")
        self._has_closer = block.closer is not None
        self._reader = block.codec.reader(block.opener.text, block.closer.text if block.closer else "", calls, bare)
        self._may_think = False
        self._state = self._call

    # A block of calls.

    def _call(self) -> bool:
        if self._suspicion is not None:
            self._suspected(self._cursor.offset)
        outcome = self._reader.step(self._cursor)
        if outcome == "more":
            return False
        if outcome == "done":
            self._calls.name_before(None)
            if self._suspicion is None:
                self._cursor.forget()
            self._to_content()
        else:
            self._damaged(outcome)
        return True

    def _damaged(self, damage: Damage) -> None:
        suspicion = self._suspected(damage.resume)
        if suspicion is not None and self._calls.whole == suspicion.whole:
            self._doubt(suspicion, damage.resume, counted=False)
            return
        self._calls.abandon(damage.kind, damage.offset)
        self._to_raw(damage.resume)

    def _to_raw(self, until: int) -> None:
        """The block is text."""
        self._cursor.rewind(self._calls.raw_from)
        if self._suspicion is None:
            self._cursor.forget()
        self._raw_until = until
        self._blank = False
        self._state = self._raw

    def _raw(self) -> bool:
        """Text of a damaged block, up to its closer or the next opener; without a closer, up to where it was read."""
        cursor = self._cursor
        start = max(cursor.pos, min(self._raw_until - cursor.base, len(cursor.text)))
        if not self._has_closer and self._raw_until <= cursor.base + start:
            self._text(start)
            self._state = self._content
            return True
        at, literal = self._program.in_damage.find(cursor, start)
        if not literal:
            self._text(at)
            return False
        if literal not in self._program.openers:
            at += len(literal)
        self._text(at)
        self._state = self._content
        return True

    # The end.

    def _close(self) -> bool:
        """What the end of the output leaves open. True if there is text to read again."""
        if self._state == self._thought:
            self._fail("truncated_reasoning" if self._cursor.cut else "missing_closer", self._thought_from)
            self._state = self._all_content
        elif self._state == self._call:
            return self._close_call()
        elif self._suspicion is not None:
            self._believe()
        return False

    def _close_call(self) -> bool:
        cursor, calls = self._cursor, self._calls
        suspicion = self._suspected(cursor.offset)
        if suspicion is not None:
            if any(cursor.kept_marker(closer) for closer in self._program.thought_closers):
                self._doubt(suspicion, _NEVER, counted=True)
                return True
            self._believe()
        was_sent = calls.sent
        calls.abandon("truncated_call" if cursor.cut else "unterminated_call", calls.raw_from)
        if cursor.cut and was_sent:
            cursor.advance(len(cursor.text), "failure")
            self._state = self._all_content
            return False
        self._to_raw(_NEVER)
        return True
