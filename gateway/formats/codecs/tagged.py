"""Calls with one pair of tags a parameter, `<function=f><parameter=a>x</parameter></function>`, typed by the tool's schema or by
the tag itself.

Invariant: each value becomes JSON once. A string goes on at once, escaped; another value is held until its end. Inside a value
only its own closer counts, and only where what follows it may follow; a closer that was left out is seen only where a declared
parameter, or the end of the call, follows on a line of its own, and is counted `missing_closer`.
"""

from dataclasses import dataclass

from gateway.formats.calls import Calls
from gateway.formats.codecs.attributes import after_quotes, plain, quoted_text, undoubled
from gateway.formats.codecs.block import BlockReader, State, text_between
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.tagged_value import TaggedValue
from gateway.formats.codecs.values import quoted
from gateway.formats.cursor import SPACE, Cursor, Matcher, after_space, longest_first
from gateway.formats.schema import Parameters
from gateway.formats.spec import Damage, Progress, Reader
from gateway.wire.text import held_suffix

_MAX_NAME = 256
_CDATA = "<![CDATA["
_CDATA_END = "]]>"


@dataclass(frozen=True, slots=True)
class Tagged:
    """The tags. A call is `call_open + name + name_end`, its parameters, `call_close`; a parameter is
    `key_open + key + key_end + value_open + value + value_close`, with blanks between tags. Names and keys may be quoted; a
    call's own tag may close itself, `/>`. `around` are tags around a call that say nothing.

    Without `call_open` the block's opener begins the call and its closer ends it. Without `name_end` the name ends where the
    line or a tag does.
    `flag` is the attribute that tells what a value is: a string where it says `text_flag`, else JSON; without it the schema does.
    `flag_open` and `flag_end` stand around the flag where it has tags of its own before the value; with `json_flags` only those
    say JSON.
    `trim`: one newline at each side of a value is markup. `entities`: names and keys hold `&amp;` for `&`. `doubled`: a name may
    be its own namespace, `f.f`. `literals` are this family's spellings of JSON values, for values that are no strings. `cdata`: a
    value may stand in `<![CDATA[…]]>`. `scoped`: a call without its block's opener is text. `json` reads the calls of models that
    at times write JSON objects in the block, or in a call in the place of a name without `name_end`.
    """

    call_open: str = "<function="
    name_end: str = ">"
    call_close: str = "</function>"
    key_open: str = "<parameter="
    key_end: str = ">"
    value_close: str = "</parameter>"
    value_open: str = ""
    flag: str = ""
    text_flag: str = ""
    flag_open: str = ""
    flag_end: str = ""
    json_flags: tuple[str, ...] = ()
    trim: bool = True
    entities: bool = False
    doubled: bool = False
    literals: tuple[tuple[str, str], ...] = ()
    around: tuple[str, ...] = ()
    cdata: bool = False
    scoped: bool = False
    json: JsonInWrapper | None = None

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """The call's own opener, where the block's was left out."""
        return (self.call_open,) if self.call_open and not self.scoped else ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """A call of a declared tool does; prose about the tag does not."""
        text, start = cursor.text, at + len(self.call_open)
        if self.json is not None and text.startswith("{", after_space(text, start)):
            return self.json.begins(cursor, after_space(text, start), names)
        marks = (self.name_end,) if self.name_end else ("\n", self.key_open, self.call_close, *self.around)
        ends = [end for mark in marks if (end := text.find(mark, start, start + _MAX_NAME)) >= 0]
        if ends:
            return self.named(text[start : min(ends)], names)[0] in names
        return False if cursor.final or len(text) - start >= _MAX_NAME + max(map(len, marks)) else None

    def named(self, header: str, names: frozenset[str]) -> tuple[str, bool]:
        """The name in a call's tag, and whether the tag closes itself."""
        header = header.strip()
        name, _ = self.keyed(header.removesuffix("/"))
        return undoubled(name, names) if self.doubled else name, header.endswith("/")

    def keyed(self, header: str) -> tuple[str, str | None]:
        """The key in a parameter's tag, and what its flag says, None where it is not given."""
        key, attributes = quoted_text(header)
        _, found, value = attributes.partition(self.flag + "=") if self.flag else ("", "", "")
        return plain(key) if self.entities else key, quoted_text(value)[0] if found else None

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "TaggedReader":
        """A reader for one block."""
        return TaggedReader(self, opener, closer, calls, bare)


class TaggedReader(BlockReader):
    """Reads one block."""

    def __init__(self, codec: Tagged, opener: str, closer: str, calls: Calls, bare: bool) -> None:
        self._codec = codec
        self._opener = opener
        self._closer = closer
        self._calls = calls
        self._bare = bare
        self._header_of_call = self._name if codec.name_end else self._plain_name
        self._state = self._call if codec.call_open else self._header_of_call
        if codec.json is not None:
            self._state = self._begin_block
        self._call_close = codec.call_close if codec.call_open else closer
        around = (*codec.around, opener, closer) if codec.call_open else (opener,)
        self._around_block = longest_first(around)
        self._between_calls = longest_first((codec.call_open, *codec.around, opener, closer))
        self._in_call = longest_first((codec.key_open, self._call_close, codec.call_open, *codec.around, opener, closer))
        self._marks = Matcher(self._between_calls)
        self._name_ends = Matcher(("\n", *self._in_call))
        self._plain_ends = Matcher(
            [
                *(lead + codec.value_close for lead in (("", "\n") if codec.trim else ("",))),
                *(lead + self._call_close for lead in ("", "\n")),
                *(lead + codec.key_open for lead in (("\n",) if codec.trim else ("", "\n"))),
            ]
        )
        self._ends = self._plain_ends
        self._json: Reader  # of a call that is an object
        self._calls_read = 0
        self._parameters = Parameters(None)
        self._keys: set[str] = set()
        self._value: TaggedValue

    def _next_tag(self, cursor: Cursor, tags: tuple[str, ...]) -> str | None:
        """The tag after whitespace, unread; "" if more text must decide; None if there is none."""
        cursor.skip(SPACE)
        return cursor.match(cursor.pos, tags)

    def _begin_block(self, cursor: Cursor) -> Progress | None:
        """Tags, or an object in their place."""
        if not cursor.skip(SPACE) and not cursor.final:
            return "more"
        if self._codec.json is not None and cursor.text.startswith("{", cursor.pos):
            self._state = self._codec.json.reader(self._opener, self._closer, self._calls, bare=False).step
        else:
            self._state = self._call if self._codec.call_open else self._header_of_call
        return None

    def _call(self, cursor: Cursor) -> Progress | None:
        """Before a call, or after one."""
        tag = self._next_tag(cursor, self._between_calls)
        if tag == "":
            return "more"
        if tag in self._codec.around:
            cursor.advance(cursor.pos + len(tag), "markup")
            return None
        if tag == self._codec.call_open:
            self._calls.end_open()
            cursor.advance(cursor.pos + len(tag), "markup")
            self._state = self._header_of_call
            return None
        end = cursor.offset
        if tag is not None and tag == self._closer:
            cursor.advance(cursor.pos + len(tag), "markup")
        elif self._calls_read and not self._bare:
            follows = tag is None and text_between(cursor, self._marks, self._codec.call_open, self._calls)
            if follows is not False:
                return None if follows else "more"
            self._calls.fail("missing_closer", cursor.offset, recovered=True)
        if not self._calls_read:
            return Damage("missing_name" if tag else "bad_header", self._calls.raw_from, end)
        self._calls.end_open()
        return "done"

    def _header(self, cursor: Cursor, end: str) -> str | Damage | None:
        """The text before a tag's end; None if it is not all there."""
        start = cursor.pos
        stop = cursor.text.find(end, start, start + _MAX_NAME + len(end))
        seen = cursor.text[start : stop if stop >= 0 else start + _MAX_NAME]
        if stop < 0:
            seen = seen[: len(seen) - held_suffix(seen, (end,))]
        if "\n" in seen or "<" in seen or (stop < 0 and len(cursor.text) - start >= _MAX_NAME + len(end)):
            return Damage("bad_header", cursor.offset, cursor.offset)
        if stop < 0:
            return None
        if not seen.strip():
            return Damage("missing_name", cursor.offset, cursor.offset)
        cursor.advance(stop + len(end), "markup")
        return seen

    def _name(self, cursor: Cursor) -> Progress | None:
        offset = cursor.offset
        header = self._header(cursor, self._codec.name_end)
        if not isinstance(header, str):
            return header or "more"
        name, closed = self._codec.named(header, self._calls.names)
        damage = self._begin(name, offset, self._closed if closed else self._body)
        if damage is None:
            self._set_aside(header, offset)
        return damage

    def _set_aside(self, header: str, offset: int) -> None:
        """What a tag's header, which stands at this offset, holds beside a name and attributes is content."""
        if odd := after_quotes(header):
            at = offset + len(header.rstrip()) - len(odd)
            self._calls.fail("bad_header", at, recovered=True)
            self._calls.aside(odd, at)

    def _plain_name(self, cursor: Cursor) -> Progress | None:
        """A name that ends with its line, or where the first parameter or the call's end begins."""
        cursor.skip(SPACE)
        if self._codec.json is not None and cursor.text.startswith("{", cursor.pos):
            self._json = self._codec.json.reader(self._opener, self._call_close, self._calls, bare=False)
            self._state = self._json_call
            return None
        offset = cursor.offset
        stop, end = self._name_ends.find(cursor, cursor.pos)
        name = cursor.text[cursor.pos : stop].strip()
        if stop - cursor.pos > _MAX_NAME or (end and (not name or any(mark in name for mark in "{<"))):
            return Damage("bad_header" if name else "missing_name", offset, offset)
        if not end:
            return "more"
        cursor.advance(stop + len(end) * (end in self._codec.around), "markup")
        return self._begin(name, offset, self._body)

    def _json_call(self, cursor: Cursor) -> Progress | None:
        """An object in the place of the name and its tags, and the call's end."""
        progress = self._json.step(cursor)
        if progress != "done":
            return progress
        self._calls_read += 1
        self._state = self._call
        return None if self._codec.call_open else "done"

    def _begin(self, name: str, offset: int, then: State) -> Progress | None:
        if not name:
            return Damage("missing_name", offset, offset)
        self._calls.start(name, offset)
        self._calls_read += 1
        self._parameters = self._calls.parameters(name)
        self._keys = set()
        self._state = then
        return None

    def _closed(self, _: Cursor) -> Progress | None:
        """A call whose tag closes itself has no parameters."""
        self._calls.arguments("{}")
        if self._bare or not self._codec.call_open:
            self._calls.end()
        self._state = self._call
        return None if self._codec.call_open else "done"

    def _body(self, cursor: Cursor) -> Progress | None:
        """Before a parameter, or after one."""
        tag = self._next_tag(cursor, self._in_call)
        codec = self._codec
        if tag == "":
            return "more"
        if tag is None and len(cursor.text) > cursor.pos:
            return Damage("bad_header", cursor.offset, cursor.offset)
        if tag == codec.key_open:
            cursor.advance(cursor.pos + len(tag), "markup")
            self._state = self._read_key
            return None
        self._calls.arguments("}" if self._keys else "{}")
        if tag == self._call_close:
            cursor.advance(cursor.pos + len(tag), "markup")
        else:
            self._calls.fail("missing_closer", cursor.offset, recovered=True)
        if not codec.call_open:
            self._calls.end()
            return "done"
        if self._bare and tag == self._call_close:
            self._calls.end()
        self._state = self._call
        return None

    def _read_key(self, cursor: Cursor) -> Progress | None:
        offset = cursor.offset
        header = self._header(cursor, self._codec.key_end)
        if not isinstance(header, str):
            return header or "more"
        key, said = self._codec.keyed(header)
        if key in self._keys:
            self._calls.fail("duplicate_key", offset, recovered=True)
        self._calls.arguments((", " if self._keys else "{") + f"{quoted(key)}: ")
        self._keys.add(key)
        self._set_aside(header, offset)
        self._value = TaggedValue(self._calls, self._parameters.types(key), self._codec.literals)
        if said is not None:
            self._declare(said)
        self._state = self._open_value if self._codec.value_open else self._first_line
        if self._codec.flag_open:
            self._state = self._open_flag
        return None

    def _declare(self, said: str) -> None:
        """The model itself says what the value is."""
        codec = self._codec
        is_text = said == codec.text_flag
        if is_text or not codec.json_flags or said in codec.json_flags:
            self._value.declare(is_text=is_text)

    def _open_flag(self, cursor: Cursor) -> Progress | None:
        tag = self._next_tag(cursor, (self._codec.flag_open,))
        if tag == "":
            return "more"
        if tag is not None:
            cursor.advance(cursor.pos + len(tag), "markup")
        self._state = self._open_value if tag is None else self._read_flag
        return None

    def _read_flag(self, cursor: Cursor) -> Progress | None:
        header = self._header(cursor, self._codec.flag_end)
        if not isinstance(header, str):
            return header or "more"
        self._declare(header.partition("[")[0].strip())  # `array[string]` is an array
        self._state = self._open_value
        return None

    def _open_value(self, cursor: Cursor) -> Progress | None:
        tag = self._next_tag(cursor, (self._codec.value_open,))
        if tag == "":
            return "more"
        if tag is None:
            return Damage("bad_header", cursor.offset, cursor.offset)
        cursor.advance(cursor.pos + len(tag), "markup")
        self._state = self._first_line
        return None

    def _first_line(self, cursor: Cursor) -> Progress | None:
        """A newline right after the tag may be markup."""
        if self._codec.trim:
            if cursor.pos == len(cursor.text) and not cursor.final:
                return "more"
            if cursor.text.startswith("\n", cursor.pos):
                cursor.advance(cursor.pos + 1, "markup")
        self._ends = self._plain_ends
        self._state = self._open_cdata if self._codec.cdata else self._begin_value
        return None

    def _open_cdata(self, cursor: Cursor) -> Progress | None:
        found = cursor.match(cursor.pos, (_CDATA,))
        if found == "":
            return "more"
        if found:
            cursor.advance(cursor.pos + len(found), "markup")
            self._ends = Matcher((_CDATA_END + self._codec.value_close,))
        self._state = self._begin_value
        return None

    def _begin_value(self, cursor: Cursor) -> Progress | None:
        self._value.begin(cursor.offset)
        self._state = self._in_value
        return None

    def _in_value(self, cursor: Cursor) -> Progress | None:
        at, end = self._find_end(cursor)
        piece = cursor.text[cursor.pos : at]
        cursor.advance(at, "arguments")
        if too_large := self._value.add(piece):
            return too_large
        if not end:
            return "more"
        return self._end_value(cursor, end)

    def _end_value(self, cursor: Cursor, end: str) -> Progress | None:
        self._value.end()
        if end.endswith(self._codec.value_close):
            cursor.advance(cursor.pos + len(end), "markup")
        else:
            self._calls.fail("missing_closer", cursor.offset, recovered=True)
        self._state = self._body
        return None

    def _find_end(self, cursor: Cursor) -> tuple[int, str]:
        """Where the value ends, and by which text; without one, up to where it certainly goes on."""
        at = cursor.pos
        while True:
            at, tag = self._ends.find(cursor, at)
            if not tag:
                return at, ""
            verdict = self._ends_value(cursor, at, tag)
            if verdict is None:
                return at, ""
            if verdict:
                return at, tag
            at += 1

    def _ends_value(self, cursor: Cursor, at: int, tag: str) -> bool | None:
        """Whether this tag ends the value; None if more text must decide."""
        after = at + len(tag)
        if tag.endswith(self._codec.value_close):
            return self._may_follow_value(cursor, after)
        if tag.endswith(self._call_close):
            return self._follows(cursor, after, self._around_block)
        end = cursor.text.find(self._codec.key_end, after, after + _MAX_NAME)
        if end < 0:
            return False if cursor.final or len(cursor.text) - after >= _MAX_NAME + 1 else None
        key, _ = self._codec.keyed(cursor.text[after:end])
        return self._parameters.declares(key) and key not in self._keys

    def _may_follow_value(self, cursor: Cursor, at: int) -> bool | None:
        """Whether another parameter, or the end of the call, stands here."""
        verdict = self._follows(cursor, at, self._in_call)
        quotable = bool(self._codec.call_open) and not cursor.by_id(self._codec.call_close)
        if verdict and quotable and not self._bare and cursor.by_id(self._closer):
            # Only the block's closer is known by its id, so that a quoted call in a value is told from the end of this one by it.
            at = after_space(cursor.text, at)
            if cursor.text.startswith(self._codec.call_close, at):
                return self._follows(cursor, at + len(self._codec.call_close), self._between_calls)
        return verdict

    def _follows(self, cursor: Cursor, at: int, tags: tuple[str, ...]) -> bool | None:
        """Whether one of the tags, or the end of an output that was not cut, stands here after whitespace; None if more text must
        decide."""
        at = after_space(cursor.text, at)
        if at == len(cursor.text):
            return True if cursor.final and not cursor.cut else None
        tag = cursor.match(at, tags)
        return None if tag == "" else tag is not None
