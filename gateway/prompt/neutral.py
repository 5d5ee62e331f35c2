"""Control tokens that a client's text spells are text: they reach the model as the characters they are, never as the token.

The template is rendered as it is: that text is sent. Which control tokens in it are the client's, a second render tells: with a
mark, a noncharacter that no string of the client holds, inside each spelling, and at the ends of strings that could be part of a
token together with what is written next to them. Then the marks are taken out again, and what held one is tokenised by a
vocabulary without control tokens. A template that looks for a token in the client's text, as for `</think>`, would read marked
text otherwise: for it the token stands twice, with a blank between, which such templates read as they read one.

Invariant: the text is what it would be without all this, or the request is refused. Its ids are those of a tokenizer that does
not know the control tokens wherever a client's string, whole or cut by the template at tokens and blanks, takes part in spelling
one. A conversation that spells none costs a search of its strings and of the text.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from gateway.errors import BadRequest, ModelFileError, shown
from gateway.prompt.tokenizer import Tokenizer
from gateway.wire.text import common_start

MAX_CONTROL_CHARS = 128
_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDEF))  # characters that Unicode keeps for a program's own use
_BLANKS = tuple(chr(code) for code in range(0x2000, 0x200B))  # that templates trim as they do a space
_HELD = chr(0xFDEF)  # where a control token of the template's stands, while the text around it is tokenised
_OURS = ("role", "type")  # in messages, parts, calls and tools: their values are the gateway's own words


class Spellings:
    """The spellings of a vocabulary's control tokens, each of two characters or more."""

    def __init__(self, texts: Collection[str]) -> None:
        """Raises ModelFileError for a token longer than any real one."""
        longest = max(map(len, texts))
        if longest > MAX_CONTROL_CHARS:
            raise ModelFileError(f"A control token has {longest} characters, the limit is {MAX_CONTROL_CHARS}.")
        firsts = {text[:size] for text in texts for size in range(1, len(text))}
        lasts = {text[size:] for text in texts for size in range(1, len(text))}
        self._texts = tuple(texts)
        self._overlap = not firsts.isdisjoint(lasts)  # one token may end in what begins another
        pattern = _one_of(texts)
        self._spelled = re.compile(f"(?=({pattern}))" if self._overlap else f"({pattern})")

    def spelled(self, value: Any) -> bool:
        """Whether any string of this JSON value spells a control token."""
        return any(map(self._spelled.search, strings(value)))

    def places(self, text: str) -> "Places":
        """What to mark in the strings that this text was rendered from."""
        begun = {*self._spelled.findall(text)}
        return Places(
            self._spelled, self._overlap, [text for text in self._texts if any(map(text.startswith, begun))] if begun else []
        )


class Places:
    """Where the strings of a request spell a control token, or may be a part of one of `held`, the rendered text's."""

    def __init__(self, spelled: re.Pattern[str], overlap: bool, held: Collection[str]) -> None:
        self._spelled, self._overlap = spelled, overlap
        self._heads = frozenset(text[:size] for text in held for size in range(1, len(text)))
        self._tails = frozenset(text[size:] for text in held for size in range(1, len(text)))
        self._middles = "\0".join(text[1:-1] for text in held)
        self._reach = max(map(len, held), default=1) - 1

    def touch(self, value: Any) -> bool:
        """Whether any string of this JSON value is to be marked."""
        return any(self._touched(text) for text in strings(value))

    def marked(self, value: Any, mark: str, between: str = "") -> Any:
        """The JSON value with marks in it; with `between`, a blank, spelled tokens stand twice, and it between them."""
        if isinstance(value, str):
            return self._marked(value, mark, between)
        if isinstance(value, dict):
            return {self._marked(key, mark, between): self.marked(inner, mark, between) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(inner, mark, between) for inner in value]
        return value

    def undoubled(self, text: str, between: str, mark: str) -> str | None:
        """The text rendered from strings with doubled tokens, each once, and marked; of one that the template took out a mark
        is left. None where tokens may overlap: one could come to be where two stood."""
        if self._overlap:
            return None
        first, *rest = text.split(between)
        pieces = [first]
        for piece in rest:
            found = self._spelled.match(piece)
            if found and pieces[-1].endswith(found[0]):
                pieces[-1] = f"{pieces[-1][: 1 - len(found[0])]}{mark}"
                pieces.append(piece[1:])
            else:
                pieces.append(f"{mark}{piece}")  # what stood on both sides could make a token now
        return "".join(pieces)

    def example(self, value: Any) -> str:
        """A string of this JSON value's that is to be marked, as a message shows it."""
        return shown(next(filter(self._touched, strings(value)), ""))

    def _touched(self, text: str) -> bool:
        return self._spelled.search(text) is not None or any(self._ends(text.strip()))

    def _marked(self, text: str, mark: str, between: str) -> str:
        """Blanks at the ends stay there: templates take them away."""
        core = text.strip()
        begins, ends = self._ends(core)
        pieces, at = [], 0
        for found in self._spelled.finditer(core):
            cut = found.start() + (0 if between else 1)
            pieces += [core[at:cut], found[1] + between if between else mark]
            at = cut
        inside = "".join([*pieces, core[at:]]) if pieces else core
        if inside == text and not begins and not ends:
            return text
        lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :] if core else ""
        return f"{lead}{mark if begins else ''}{inside}{mark if ends else ''}{trail}"

    def _ends(self, text: str) -> tuple[bool, bool]:
        """Whether what stands before, and what stands after, could make a token together with this text."""
        if text and len(text) < self._reach and text in self._middles:
            return True, True
        sizes = range(1, min(len(text), self._reach) + 1)
        return any(text[:size] in self._tails for size in sizes), any(text[-size:] in self._heads for size in sizes)


def clients_own(variables: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A template's variables, with each value in them that a client gave changed."""
    return {
        name: [_own(item, change) for item in value] if name in ("messages", "tools") and value else change(value)
        for name, value in variables.items()
    }


def _own(item: Any, change: Callable[[Any], Any]) -> Any:
    """Of a message, a part of one, a call or a tool, whose keys are the gateway's: a client's own are in what they hold."""
    if not isinstance(item, dict):
        return change(item)
    return {key: _own_value(key, value, change) for key, value in item.items()}


def _own_value(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if key in _OURS:
        return value
    if isinstance(value, list):
        return [_own(inner, change) for inner in value]
    return _own(value, change) if key == "function" else change(value)


def strings(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys too."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from value
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value


def unused_character(value: Any) -> str:
    """A noncharacter that no string of this JSON value holds, as it is or as JSON escapes it. Raises BadRequest: all are used."""
    return _unused(value, _MARKS, "noncharacter")


def unused_blank(value: Any) -> str:
    """A blank, otherwise likewise."""
    return _unused(value, _BLANKS, "blank")


def _unused(value: Any, characters: Sequence[str], kind: str) -> str:
    held = "\n".join(strings(value))
    for character in characters:
        if character not in held and _escaped(character) not in held:
            return character
    first, last = (f"U+{ord(character):04X}" for character in (characters[0], characters[-1]))
    raise BadRequest(f"The text holds every {kind} from {first} to {last}.", param="messages")


def with_plain_marks(text: str, mark: str) -> str:
    """The rendered text, with the marks that the template escaped as marks. Raises BadRequest where they cannot be told."""
    escaped = _escaped(mark)
    if f"\\{escaped}" in text:
        raise BadRequest(
            "The model's chat template escapes text twice, so that a control token in it cannot be given as text.",
            param="messages",
        )
    return text.replace(escaped, mark)


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"


class MarkedText:
    """Tokenises text with marks in it, as if they were not there."""

    def __init__(self, tokenizer: Tokenizer, controls: Iterable[str]) -> None:
        backend = tokenizer.backend
        self._texts = {tokenizer.special_ids[text]: text for text in controls}
        unknown = getattr(backend.model, "unk_token", None)  # what characters become that no other token holds
        self._never = frozenset(token_id for token_id, text in self._texts.items() if text != unknown)
        added = sorted(backend.get_added_tokens_decoder().items())
        others = [(token_id, token) for token_id, token in added if token_id not in self._texts]
        self._plain = plain = Backend(backend.model)  # shares the model: neither time nor memory
        plain.normalizer, plain.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        plain.add_tokens([*(token for _, token in others), AddedToken(_HELD, normalized=False)])
        self._held_id = plain.token_to_id(_HELD)
        renumbered = {plain.token_to_id(token.content): token_id for token_id, token in others}
        self._original = {new: old for new, old in renumbered.items() if new != old}
        self._finder = finder = Backend(models.WordLevel({"": 0}, ""))  # knows the added tokens, all else is one word
        finder.normalizer = backend.normalizer
        finder.add_tokens([token for _, token in added])
        self._found = {finder.token_to_id(text): token_id for token_id, text in self._texts.items()}

    def encode(self, text: str, mark: str) -> tuple[int, ...]:
        """The ids of the text without the marks. Control tokens that stand between marks are tokens. Raises BadRequest for text
        that cannot be kept apart from them."""
        (whole,) = self._finder.encode_batch([text], add_special_tokens=False)
        written = [
            (self._found[found], place) for found, place in zip(whole.ids, whole.offsets, strict=True) if found in self._found
        ]
        if written and _HELD in text:
            raise BadRequest("U+FDEF cannot stand in text beside control tokens that are given as text.", param="messages")
        pieces, at = [], 0
        for _, (begin, end) in written:
            pieces.append(text[at:begin])
            at = end
        held = _HELD.join([*pieces, text[at:]]).replace(mark, "")
        (plain,) = self._plain.encode_batch_fast([held], add_special_tokens=False)
        ids = [self._original.get(token_id, token_id) if token_id != self._held_id else -1 for token_id in plain.ids]
        if ids.count(-1) != len(written) or not self._never.isdisjoint(ids):
            raise BadRequest(
                "The text spells a control token of the model, which its vocabulary cannot hold as text here.", param="messages"
            )
        tokens = iter(written)
        return tuple(next(tokens)[0] if token_id < 0 else token_id for token_id in ids)


def _one_of(words: Collection[str]) -> str:
    """A pattern that matches wherever one of the words begins, and there the shortest: a tree of shared beginnings, so that it is
    quick whatever their number is. Of `<s>`, `</s>` and `<s>x` it is `<(?:s>|/s>)`."""
    shared = common_start(*words)
    rests = {word[len(shared) :] for word in words}
    if "" in rests:
        return re.escape(shared)
    by_first: dict[str, list[str]] = {}
    for rest in rests:
        by_first.setdefault(rest[0], []).append(rest)
    return f"{re.escape(shared)}(?:{'|'.join(map(_one_of, by_first.values()))})"
