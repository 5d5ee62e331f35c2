"""Messages with headers, as gpt-oss writes them (Harmony): thoughts, visible text and calls are messages on channels.

Invariant: as for every automaton. A header that cannot be read is content with what it holds, and counted `bad_header`; a call
that is cut in its header or after it, or whose arguments cannot be read, is content from its header on.

Inside a message only its end counts, and only where another message, or nothing, follows: text may quote every marker.
"""

from dataclasses import dataclass

from gateway.formats.automaton import Automaton
from gateway.formats.base import ParseOptions
from gateway.formats.codecs.json_arguments import JsonArguments
from gateway.formats.cursor import SPACE, Cursor, Matcher
from gateway.formats.program import Program
from gateway.formats.spec import Damage, Headers, Marker

_MAX_HEADER = 512
_RECIPIENT = "to="
_HALF_RECIPIENT = (" t", " to")  # where the output was cut in it
ROLE = "assistant"


@dataclass(frozen=True, slots=True)
class _Message:
    """What a header says. `channel` is empty where it names none."""

    channel: str
    recipient: str


class _Part:
    """A header's part. It is `odd` if its words, but for recipients, are not at most one of each of these sets, in order."""

    def __init__(self, text: str, *known: tuple[str, ...]) -> None:
        words = [word.partition(_RECIPIENT) for word in text.split()]
        self.recipients = [name for _, to, name in words if to]
        sets = iter(known)
        self.odd = not all(any(said in names for names in sets) for said, _, _ in words if said)


class Harmony(Automaton):
    """One answer's parser."""

    def __init__(self, program: Program, options: ParseOptions, cursor: Cursor | None = None) -> None:
        super().__init__(program, options, cursor)
        headers = program.spec.headers
        if headers is None:
            raise ValueError("this family has no headers")
        self._headers: Headers = headers
        self._calls_count = options.calls
        self._ends = tuple(marker.text for marker in headers.ends)
        self._in_header = Matcher((headers.body.text, headers.start.text, *self._ends), noted=(headers.body.text,))
        self._channels = Matcher((headers.channel.text,))
        self._in_body = Matcher((*self._ends, headers.start.text), noted=(headers.body.text,))
        self._said = ""  # of the header, in the prompt
        self._started = False  # the header has its start
        self._raw_until = 0  # text of a damaged call up to this offset is content, whatever it spells
        self._thinks = False
        self._message_at = 0
        self._arguments: JsonArguments
        self._begin(options.prompt_tail)

    def _begin(self, prompt_tail: str) -> None:
        """Where the prompt has left off: before a header, in one, or in a message."""
        _, started, said = prompt_tail.rpartition(self._headers.start.text)
        header, inside, body = said.partition(self._headers.body.text)
        ended = any(end in body for end in self._ends)
        self._to_header(header if started and not ended else "")
        if started and inside and not ended:
            self._open(self._read(header))

    def _give_up(self) -> None:
        if self._state in (self._in_arguments, self._after_arguments):
            self._cursor.rewind(self._calls.raw_from)

    # Headers.

    def _to_header(self, said: str = "") -> None:
        self._said = said
        self._started = False
        self._message_at = self._cursor.offset
        self._calls.begin()
        self._state = self._header

    def _header(self) -> bool:
        """Up to the message's body. Nothing of it is text, if it holds no more than a header does."""
        cursor, headers = self._cursor, self._headers
        at, literal = self._in_header.find(cursor, cursor.pos)
        if at - cursor.pos > _MAX_HEADER:
            return self._no_header(cursor.pos + _MAX_HEADER + 1, "")
        if literal == headers.start.text and not cursor.text[cursor.pos : at].strip(SPACE) and not self._said:
            cursor.advance(at + len(literal), "markup")
            self._started = True
            return True
        if literal != headers.body.text:
            if not literal and not cursor.final:
                return False
            return self._no_header(at, literal)
        self._say_before(at)
        header = self._said + cursor.text[cursor.pos : at]
        message = self._read(header)
        if self._holds_text(header):
            self._say_header(at)
        elif message.channel not in (*headers.thoughts, *headers.content) and not message.recipient:
            self._fail("bad_header", cursor.offset)
        cursor.advance(at + len(literal), "markup")
        self._open(message)
        return True

    def _say_before(self, at: int) -> None:
        """What stands before the channel of a header without a start, and is no role, is text. The body is at this index."""
        cursor = self._cursor
        to = min(at, self._channels.find(cursor, cursor.pos)[0])
        role = cursor.text[cursor.pos : to].split()
        if self._said or self._started or not role or role[0] == ROLE or role[0].startswith(_RECIPIENT):
            return
        self._say_header(to)

    def _say_header(self, to: int) -> None:
        """What a header, or the text before it, holds up to this index is text; the message begins after it."""
        self._fail("bad_header", self._cursor.offset)
        self._text(to)
        self._message_at = self._cursor.offset
        self._calls.begin()

    def _holds_text(self, header: str) -> bool:
        """Whether there is more than a role, on each channel its name and a content type, and one recipient in all."""
        headers = self._headers
        constrain, names = headers.constrain.text, (*headers.thoughts, *headers.content)
        role, *channels = header.replace(constrain, f" {constrain} ").split(headers.channel.text)
        kind = ((constrain,), headers.kinds)
        roles = (ROLE, *(headers.functions + name for name in self._calls.names))  # a tool's, where it gives its result
        parts = [_Part(role, roles, *kind), *(_Part(channel, names, *kind) for channel in channels)]
        recipients = {name for part in parts for name in part.recipients} - {ROLE}
        return any(part.odd for part in parts) or "" in recipients or len(recipients) > 1

    def _no_header(self, at: int, literal: str) -> bool:
        """No body follows: what is there is text."""
        cursor = self._cursor
        text = cursor.text[cursor.pos : at]
        if not literal and cursor.final and self._cut_in_header(text):
            return True
        if text.strip(SPACE):
            self._fail("bad_header", cursor.offset)
            self._text(at)
        cursor.advance(at, "markup")
        if not literal:
            self._cursor.forget()
            self._state = self._content
            return at < len(cursor.text)
        cursor.advance(at + len(literal), "markup")
        self._to_header()
        return True

    def _cut_in_header(self, text: str) -> bool:
        """The output ends in a header, if it is one: that of a call is text, a role and a channel alone are markup."""
        cursor, header = self._cursor, self._said + text
        begun = self._started or self._said or self._channels.find(cursor, cursor.pos)[1]
        if begun and text.strip(SPACE) and (_RECIPIENT in header or header.endswith(_HALF_RECIPIENT)):
            self._fail("truncated_call" if cursor.cut else "bad_header", self._message_at, recovered=False)
            cursor.rewind(self._calls.raw_from)
        elif self._only_begins(header) if begun else self._half_marker(text):
            if not cursor.cut and (self._started or text):
                self._fail("bad_header", self._message_at)
            cursor.advance(len(cursor.text), "markup")
        else:
            return False
        cursor.forget()
        self._thinks = False
        self._state = self._all_content
        return True

    def _only_begins(self, header: str) -> bool:
        """Whether this is surely a header's beginning that says no more than a role, a channel and a content type."""
        headers = self._headers
        role, named, said = header.partition(headers.channel.text)
        if not named:
            return ROLE.startswith(header) or _follows_name(header, ROLE, headers.channel.text)
        if role.strip(SPACE) not in ("", ROLE):
            return False
        channel, constrained, kind = said.partition(headers.constrain.text)
        names = (*headers.thoughts, *headers.content)
        if not constrained and len(channel.split()) > 1:
            channel, kind = channel.split(maxsplit=1)
        if constrained or kind:
            return channel.strip(SPACE) in names and _begins_with(kind, headers.kinds, headers.body)
        return _begins_with(channel, names, headers.constrain, headers.body)

    def _half_marker(self, text: str) -> bool:
        """Whether the output was cut in the marker that begins a header after another message."""
        begins = (self._headers.start.text[:-1], self._headers.channel.text[:-1])
        return self._cursor.cut and self._message_at > 0 and any(marker.startswith(text) for marker in begins)

    def _read(self, header: str) -> _Message:
        """The channel and the recipient; of several channels the last counts."""
        role, *channels = header.split(self._headers.channel.text)
        channel = ""
        constrain = self._headers.constrain.text
        recipient = _recipient(role.partition(constrain)[0])
        for part in channels:
            words = part.replace(constrain, " ").split()
            channel = words[0] if words and not words[0].startswith(_RECIPIENT) else ""
            recipient = _recipient(part.partition(constrain)[0]) or recipient
        return _Message(channel, recipient if recipient != ROLE else "")

    def _open(self, message: _Message) -> None:
        """A message's body begins."""
        headers = self._headers
        self._thinks = message.channel in headers.thoughts and not message.recipient
        name = message.recipient.removeprefix(headers.functions)
        if self._calls_count and name and (name != message.recipient or name in self._calls.names):
            self._calls.start(name, self._message_at)
            self._state = self._first
            return
        if message.recipient:  # a tool of the model's own, that nobody here runs
            self._fail("unknown_tool", self._message_at, recovered=False)
        self._cursor.forget()
        self._state = self._content

    # Text.

    def _in_thought(self) -> bool:
        return self._thinks and self._state == self._content

    def _content(self) -> bool:
        """A message that is thought or visible text, up to its end."""
        cursor = self._cursor
        at = max(cursor.pos, min(self._raw_until - cursor.base, len(cursor.text)))
        while True:
            at, literal = self._in_body.find(cursor, at)
            if not literal:
                self._say(at)
                return False
            ends = self._ends_here(at, literal)
            if ends is None and not cursor.final:
                self._say(at)
                return False
            if ends is not False:  # where the output was cut in what follows, it would have been a message
                break
            at += 1
        self._say(at)
        if literal == self._headers.start.text:
            self._fail("missing_closer", cursor.offset)
        cursor.advance(at + len(literal), "markup")
        self._to_header()
        return True

    def _say(self, to: int) -> None:
        cursor = self._cursor
        if not self._thinks:
            self._text(to)
        elif to > cursor.pos:
            self._output.reasoning(cursor.text[cursor.pos : to])
            cursor.advance(to, "reasoning")

    def _ends_here(self, at: int, literal: str) -> bool | None:
        """Whether this marker ends the message: another begins after it, or nothing does; None if more text must decide."""
        cursor, headers = self._cursor, self._headers
        after = at + len(literal)
        if literal == headers.start.text:
            return self._follows(after, (ROLE,))
        return True if cursor.final and after == len(cursor.text) else self._follows(after, (headers.start.text,))

    def _follows(self, at: int, texts: tuple[str, ...]) -> bool | None:
        found = self._cursor.match(at, texts)
        return None if found == "" else found is not None

    # Calls.

    def _first(self) -> bool:
        """Before the arguments; without any they are empty."""
        cursor = self._cursor
        if not cursor.skip(SPACE) and not cursor.final:
            return False
        found = cursor.match(cursor.pos, self._ends)
        if found == "":
            return False
        if found:
            self._calls.arguments("{}")
            self._state = self._after_arguments
        elif cursor.pos < len(cursor.text):
            self._arguments = JsonArguments(self._calls, cursor, self._calls.arguments)
            self._state = self._in_arguments
        else:
            return False
        return True

    def _in_arguments(self) -> bool:
        progress = self._arguments.step(self._cursor)
        if progress == "more":
            return False
        if progress == "done":
            self._state = self._after_arguments
        else:
            self._damaged(progress)
        return True

    def _after_arguments(self) -> bool:
        """The message's end, which the engine may have stopped at; where the model left it out, another message."""
        cursor = self._cursor
        if cursor.skip(SPACE):
            found = cursor.match(cursor.pos, (*self._ends, self._headers.start.text))
            if found == "":
                return False
            if found is None:
                self._damaged(Damage("invalid_json", cursor.offset, cursor.offset))
                return True
            if found == self._headers.start.text:
                self._calls.fail("missing_closer", cursor.offset, recovered=True)
            else:
                cursor.advance(cursor.pos + len(found), "markup")
        elif not cursor.final or cursor.cut:
            return False
        self._calls.end()
        self._to_header()
        return cursor.pos < len(cursor.text)

    def _damaged(self, damage: Damage) -> None:
        """The call is none: its message is text, header and all."""
        self._calls.abandon(damage.kind, damage.offset)
        self._raw_until = damage.resume
        self._cursor.rewind(self._calls.raw_from)
        self._cursor.forget()
        self._thinks = False
        self._state = self._content

    # The end.

    def _close(self) -> bool:
        cursor, calls = self._cursor, self._calls
        if self._state == self._content and self._thinks and cursor.cut:
            self._fail("truncated_reasoning", self._message_at)
            self._thinks = False
        if self._state not in (self._first, self._in_arguments, self._after_arguments):
            return False
        was_sent = calls.sent
        calls.abandon("truncated_call" if cursor.cut else "unterminated_call", calls.raw_from)
        if cursor.cut and was_sent:
            cursor.advance(len(cursor.text), "failure")
            self._state = self._all_content
            return False
        cursor.rewind(calls.raw_from)
        cursor.forget()
        self._thinks = False
        self._state = self._all_content
        return True


def _begins_with(text: str, names: tuple[str, ...], *markers: Marker) -> bool:
    """Whether this is the beginning of a name, or a name and the beginning of one of these markers."""
    word = text.strip(SPACE)
    return any(name.startswith(word) or _follows_name(text, name, marker.text) for name in names for marker in markers)


def _follows_name(text: str, name: str, marker: str) -> bool:
    """Whether this is the name and, after blanks, the beginning of the marker."""
    text = text.strip(SPACE)
    return text.startswith(name) and marker.startswith(text.removeprefix(name).strip(SPACE))


def _recipient(part: str) -> str:
    """The word after `to=`, empty where there is none."""
    _, found, rest = part.partition(_RECIPIENT)
    words = rest.split()
    return words[0] if found and words else ""
