"""Control tokens that a client's text spells are text: they reach the model as the characters they are, never as the token.

In three steps. Each spelling in the client's strings gets a mark inside, a noncharacter that no string of the client holds, so
that neither the template nor the tokenizer finds the token there; so do the ends of strings that could be part of a spelling
together with what the template writes next to them. The template is rendered. Then the marks are taken out again, and what held
one is tokenised by a vocabulary without control tokens.

Invariant: the text is what it would be without all this, and its ids are those of the tokenizer that did not know the control
tokens in the marked places. A conversation that spells none costs one search of its strings.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.errors import BadRequest
from gateway.prompt.tokenizer import Tokenizer

_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDEF))  # characters that Unicode keeps for a program's own use
_HELD = chr(0xFDEF)  # where a control token of the template's stands, while the text around it is tokenised


class Spellings:
    """The spellings of a vocabulary's control tokens, each of two characters or more."""

    def __init__(self, texts: Collection[str]) -> None:
        self._spelled = re.compile(_one_of(texts))
        self._firsts = re.compile(f"[{re.escape(''.join({text[0] for text in texts}))}]")
        self._lasts = re.compile(f"[{re.escape(''.join({text[-1] for text in texts}))}]")
        self._heads = frozenset(_telling(text[:size] for text in texts for size in range(1, len(text))))
        self._tails = frozenset(_telling(text[size:] for text in texts for size in range(1, len(text))))
        self._reach = max(map(len, texts)) - 1

    def spelled(self, value: Any) -> bool:
        """Whether any string of this JSON value spells a control token."""
        return any(map(self._spelled.search, strings(value)))

    def touch(self, value: Any) -> bool:
        """Whether any string of this JSON value spells a control token, or could together with what stands next to it."""
        spelled, firsts, lasts, reach = self._spelled.search, self._firsts.search, self._lasts.search, self._reach
        for text in strings(value):
            if spelled(text) or (lasts(text, 0, reach) and self._begun_outside(text)):
                return True
            if firsts(text, max(len(text) - reach, 0)) and self._ended_outside(text):
                return True
        return False

    def marked(self, value: Any, mark: str) -> Any:
        """The JSON value with marks in it."""
        if isinstance(value, str):
            begin = mark if self._begun_outside(value) else ""
            end = mark if self._ended_outside(value) else ""
            return f"{begin}{self._inside(value, mark)}{end}"
        if isinstance(value, dict):
            return {self._inside(key, mark): self.marked(inner, mark) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(inner, mark) for inner in value]
        return value

    def _inside(self, text: str, mark: str) -> str:
        pieces, at = [], 0
        while found := self._spelled.search(text, at):
            pieces.append(text[at : found.start() + 1])
            at = found.start() + 1
        return mark.join([*pieces, text[at:]])

    def _begun_outside(self, text: str) -> bool:
        return any(text[: found.end()] in self._tails for found in self._lasts.finditer(text, 0, self._reach))

    def _ended_outside(self, text: str) -> bool:
        begin = max(len(text) - self._reach, 0)
        return any(text[found.start() :] in self._heads for found in self._firsts.finditer(text, begin))


def _telling(parts: Iterable[str]) -> Iterator[str]:
    """The parts of spellings that are no mere word: those end and begin strings everywhere."""
    return (part for part in parts if not part.isalnum())


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
    held = "\n".join(strings(value))
    for mark in _MARKS:
        if mark not in held and _escaped(mark) not in held:
            return mark
    raise BadRequest("The text holds every noncharacter from U+FDD0 to U+FDEE.", param="messages")


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
        self._backend = backend = tokenizer.backend
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

    def encode(self, text: str, mark: str) -> tuple[int, ...]:
        """The ids of the text without the marks. Control tokens that stand between marks are tokens. Raises BadRequest for text
        that cannot be kept apart from them."""
        (whole,) = self._backend.encode_batch([text], add_special_tokens=False)
        written = [
            (token_id, (begin, end))
            for token_id, (begin, end) in zip(whole.ids, whole.offsets, strict=True)
            if token_id in self._never or (token_id in self._texts and self._texts[token_id] in text[begin:end])
        ]
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
    """A pattern that matches wherever one of the words begins, if not always to its end; quick whatever their number is."""
    shared = _common(min(words), max(words))
    rests = {word[len(shared) :] for word in words}
    if "" in rests:
        return re.escape(shared)
    by_first: dict[str, list[str]] = {}
    for rest in rests:
        by_first.setdefault(rest[0], []).append(rest)
    return f"{re.escape(shared)}(?:{'|'.join(map(_one_of, by_first.values()))})"


def _common(one: str, other: str) -> str:
    """What both begin with."""
    size = next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), None)
    return one[:size] if size is not None else min(one, other, key=len)
