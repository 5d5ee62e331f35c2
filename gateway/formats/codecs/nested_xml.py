"""Calls whose parameters are elements named after their keys, nested as deep as the values are: `<f><a>x</a></f>`, each tag with
a prefix; the items of a list are elements of one name.

Invariant: a parameter that can only be a string goes on at once, escaped; another is held until its end and becomes JSON once,
typed by the schema at each depth. Only a tag with its prefix is a tag, and only where a value may hold elements. Text beside
elements is content after the call, counted `bad_header`; an element that its object already has is kept, counted `duplicate_key`.
"""

from dataclasses import dataclass, field

from gateway.formats.calls import Calls
from gateway.formats.codecs.block import BlockReader, text_between
from gateway.formats.codecs.values import converted, escaped, quoted
from gateway.formats.cursor import SPACE, Cursor, Matcher
from gateway.formats.schema import Parameters, Shape
from gateway.formats.spec import Damage, Progress

_MAX_TAG = 256
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class NestedXml:
    """`prefix` stands before each tag; a call is `<call name="…">`, an item of a list `<item>`."""

    prefix: str
    call: str = "invoke"
    item: str = "item"

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """None: a tag without its block's opener is text."""
        return ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """Never asked, as there is no bare opener."""
        return False

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "NestedReader":
        """A reader for one block."""
        return NestedReader(self, closer, calls)


@dataclass(slots=True)
class _Element:
    """An open or whole element of a value. `text` is that since its last child."""

    name: str
    at: int
    text: list[str] = field(default_factory=list)
    children: list["_Element"] = field(default_factory=list)


class NestedReader(BlockReader):
    """Reads one block."""

    def __init__(self, codec: NestedXml, closer: str, calls: Calls) -> None:
        self._codec = codec
        self._closer = closer
        self._calls = calls
        self._state = self._between
        self._tags = Matcher((codec.prefix,))
        self._opener = f"{codec.prefix}<{codec.call}"
        self._marks = Matcher((self._opener, closer))
        self._calls_read = 0
        self._parameters = Parameters(None)
        self._keys: set[str] = set()
        self._open: list[_Element] = []
        self._streams = False
        self._nests = False
        self._value_at = 0
        self._held_chars = 0

    def _tag(self, cursor: Cursor, at: int) -> str | Damage | None:
        """The inside of the tag whose prefix is at this index; None if it is not all there."""
        start = at + len(self._codec.prefix)
        open_ended = not cursor.final or cursor.cut
        if start == len(cursor.text) and open_ended:
            return None
        stop = cursor.text.find(">", start, start + _MAX_TAG)
        if stop < 0 and len(cursor.text) - start < _MAX_TAG and open_ended:
            return None
        if stop < 0 or cursor.text[start] != "<":
            return Damage("bad_header", cursor.base + at, cursor.base + at)
        return cursor.text[start + 1 : stop].strip()

    def _consume(self, cursor: Cursor, at: int) -> None:
        cursor.advance(cursor.text.index(">", at + len(self._codec.prefix)) + 1, "markup")

    def _next_tag(self, cursor: Cursor) -> str | Damage | None:
        """The inside of the tag after whitespace, unread."""
        if not cursor.skip(SPACE):
            return None
        found = cursor.match(cursor.pos, (self._codec.prefix,))
        if found == "":
            return None
        if found is None:
            return Damage("bad_header", cursor.offset, cursor.offset)
        return self._tag(cursor, cursor.pos)

    def _between(self, cursor: Cursor) -> Progress | None:
        """Before a call, or after one."""
        if not cursor.skip(SPACE):
            return "more"
        found = cursor.match(cursor.pos, (self._closer,))
        if found == "":
            return "more"
        if found:
            cursor.advance(cursor.pos + len(found), "markup")
            return self._end()
        offset = cursor.offset
        inside = self._next_tag(cursor)
        if not isinstance(inside, str):
            if inside is None:
                return "more"
            if not self._calls_read:
                return Damage("bad_header", self._calls.raw_from, cursor.offset)
            follows = text_between(cursor, self._marks, self._opener, self._calls)
            if follows is not False:
                return None if follows else "more"
            self._calls.fail("missing_closer", cursor.offset, recovered=True)
            return self._end()
        word, _, attributes = inside.partition(" ")
        key, _, value = attributes.partition("=")
        name = value.strip().strip("\"'")
        if word != self._codec.call or not name:
            return Damage("bad_header" if word != self._codec.call else "missing_name", offset, cursor.offset)
        self._calls.end_open()
        key_at = cursor.base + cursor.text.index(key, cursor.pos)
        self._consume(cursor, cursor.pos)
        self._calls.start(name, offset)
        if key.strip() != "name":
            self._calls.fail("bad_header", key_at, recovered=True)
            self._calls.aside(key, key_at)
        self._calls_read += 1
        self._parameters = self._calls.parameters(name)
        self._keys = set()
        self._state = self._body
        return None

    def _end(self) -> Progress:
        if not self._calls_read:
            self._calls.fail("bad_header", self._calls.raw_from, recovered=True)
        self._calls.end_open()
        return "done"

    def _body(self, cursor: Cursor) -> Progress | None:
        """Before a parameter, or after one."""
        inside = self._next_tag(cursor)
        if not isinstance(inside, str):
            return inside or "more"
        if not inside or (inside.startswith("/") and inside != f"/{self._codec.call}"):
            return Damage("bad_header", cursor.offset, cursor.offset)
        offset = cursor.offset
        self._consume(cursor, cursor.pos)
        if inside == f"/{self._codec.call}":
            self._calls.arguments("}" if self._keys else "{}")
            self._state = self._between
            return None
        if inside in self._keys:
            self._calls.fail("duplicate_key", offset, recovered=True)
        self._calls.arguments((", " if self._keys else "{") + f"{quoted(inside)}: ")
        self._keys.add(inside)
        self._open = [_Element(inside, offset)]
        self._value_at = cursor.offset
        self._held_chars = 0
        types = self._parameters.types(inside)
        self._streams = types.kinds == {"string"}
        self._nests = not types.kinds.isdisjoint(("object", "array"))
        if self._streams:
            self._calls.arguments('"')
        self._state = self._value
        return None

    def _value(self, cursor: Cursor) -> Progress | None:
        """Text up to a tag, and the tag."""
        at, found = self._tags.find(cursor, cursor.pos)
        if progress := self._say(cursor, at):
            return progress
        if not found:
            return "more"
        inside = self._tag(cursor, at)
        if inside is None:
            return "more"
        element = self._open[-1]
        if inside == f"/{element.name}":
            if element.children:
                self._set_aside(cursor, element)
            self._consume(cursor, at)
            self._close(element)
        elif isinstance(inside, Damage) or not self._nests or inside.startswith("/") or not inside:
            return self._say(cursor, at + len(found))  # in a string a tag is text, and so is what closes nothing
        elif len(self._open) >= _MAX_DEPTH:
            return Damage("value_too_large", cursor.offset, cursor.offset)
        else:
            self._set_aside(cursor, element)
            child = _Element(inside, cursor.offset)
            self._consume(cursor, at)
            element.children.append(child)
            self._open.append(child)
        return None

    def _say(self, cursor: Cursor, to: int) -> Damage | None:
        """The value's text up to this index."""
        piece = cursor.text[cursor.pos : to]
        cursor.advance(to, "arguments")
        if self._streams:
            self._calls.arguments(escaped(piece))
            return None
        self._open[-1].text.append(piece)
        self._held_chars += len(piece)
        if self._held_chars > self._calls.held_chars:
            return Damage("value_too_large", self._value_at, self._value_at + self._calls.held_chars)
        return None

    def _set_aside(self, cursor: Cursor, element: _Element) -> None:
        """The text up to the cursor stands beside elements."""
        text = "".join(element.text)
        element.text.clear()
        if text.strip(SPACE):
            offset = cursor.offset - len(text)
            self._calls.fail("bad_header", offset, recovered=True)
            self._calls.aside(text, offset)

    def _close(self, element: _Element) -> None:
        self._open.pop()
        if self._open:
            return
        if self._streams:
            self._calls.arguments('"')
        else:
            text, fits = self._written(element, self._parameters.shape(element.name))
            if not fits:
                self._calls.fail("schema_mismatch", self._value_at, recovered=True)
            self._calls.arguments(text)
        self._state = self._body

    def _written(self, element: _Element, shape: Shape) -> tuple[str, bool]:
        """The element's value as JSON, and whether it is what the schema says."""
        kinds = shape.types.kinds
        if not element.children:
            text = "".join(element.text)
            if not text.strip(SPACE) and "string" not in kinds and kinds & {"object", "array"}:
                return ("[]" if "array" in kinds else "{}"), True
            return converted(text, shape.types)
        listed = all(child.name == self._codec.item for child in element.children)
        if listed and ("array" in kinds or "object" not in kinds):
            parts = [self._written(child, shape.item) for child in element.children]
            return "[" + ", ".join(text for text, _ in parts) + "]", "array" in kinds and all(fits for _, fits in parts)
        return self._members(element, shape, "object" in kinds)

    def _members(self, element: _Element, shape: Shape, fits: bool) -> tuple[str, bool]:
        """The element's children as a JSON object."""
        names: set[str] = set()
        parts = []
        for child in element.children:
            if child.name in names:
                self._calls.fail("duplicate_key", child.at, recovered=True)
            names.add(child.name)
            value, its_own = self._written(child, shape.member(child.name))
            parts.append(f"{quoted(child.name)}: {value}")
            fits = fits and its_own
        return "{" + ", ".join(parts) + "}", fits
