"""What the fault engine says: the next token is a pure function of the ids so far, so that an answer that goes on from the ids
of a cut one is the unbroken one.

Invariant: an answer is UTF-8, holds no marker of any format, and is not made of the tokens that its text would be tokenised to.
It ends where its prompt says (`[[tokens=40]]`, the end of turn not counted), however much of it the prompt holds already.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache

from support.vocabulary import CONTROL, DEFINED, small_tokenizer

OPENS, ENDS = CONTROL.index("<|im_start|>"), CONTROL.index("<|im_end|>")
ANSWER_TOKENS = 24
_BYTES_AT = len(CONTROL) + len(DEFINED)
_LENGTH = re.compile(r"\[\[tokens=(\d{1,7})\]\]")
_ASCII = re.compile(r"\[\[ascii\]\]")
_CHARACTERS = ("é", "ß", "Ж", "日", "本", "ह", "€", "🦙", "🚀", "𝄞")
_LETTERS = "theina " * 5 + "ordslm,."  # many pairs of them are a word, which the tokenizer would see
_WORDS = ("the", "on", "an", "in", "er", " the", " a")


def byte_id(byte: int) -> int:
    """The token of one byte."""
    return _BYTES_AT + byte


@cache
def _choices(multibyte: bool) -> tuple[int, ...]:
    """The tokens that may follow a whole character: of `the` one, two or three, as it comes."""
    tokenizer = small_tokenizer()
    ids = [byte_id(ord(letter)) for letter in _LETTERS]
    for word in _WORDS:
        (token,) = tokenizer.encode(word)
        ids += [token] * 2
    if multibyte:
        ids += [byte_id(character.encode()[0]) for character in _CHARACTERS]
    return tuple(ids)


@cache
def _goes_on() -> dict[bytes, tuple[int, ...]]:
    """The tokens that may follow each beginning of a character."""
    found: dict[bytes, set[int]] = {}
    for character in map(str.encode, _CHARACTERS):
        for size in range(1, len(character)):
            found.setdefault(character[:size], set()).add(byte_id(character[size]))
    return {begun: tuple(sorted(ids)) for begun, ids in found.items()}


def text_of(ids: Sequence[int]) -> str:
    """The text of the ids, those of special tokens included."""
    data = b"".join(small_tokenizer().data_of(token) for token in ids)
    return data.decode(errors="replace")


class Saying:
    """The answer to a prompt, token by token."""

    def __init__(self, prompt: Sequence[int], *, at_least: int = 0) -> None:
        """`at_least`: no end of turn before so many more tokens."""
        answer_at = _answer_at(prompt)
        text = text_of(prompt[:answer_at])
        lengths = _LENGTH.findall(text)
        self._left = (int(lengths[-1]) if lengths else ANSWER_TOKENS) - (len(prompt) - answer_at)
        self._at_least = at_least
        self._multibyte = not _ASCII.search(text)
        self._begun = b""  # of a character
        self._hash = hashlib.blake2b(digest_size=4)
        for token in prompt[:answer_at]:
            self._hash.update(token.to_bytes(4, "little"))
        for token in prompt[answer_at:]:
            self._take(token)

    def next(self) -> int:
        """The next token; after the end of turn, more of it."""
        if self._left <= 0 and self._at_least <= 0 and not self._begun:
            return ENDS
        chance = int.from_bytes(self._hash.copy().digest(), "little")
        choices = _goes_on()[self._begun] if self._begun else _choices(self._multibyte)
        token = choices[chance % len(choices)]
        self._take(token)
        self._left -= 1
        self._at_least -= 1
        return token

    def _take(self, token: int) -> None:
        self._hash.update(token.to_bytes(4, "little"))
        begun = self._begun + small_tokenizer().data_of(token)
        self._begun = begun if begun in _goes_on() else b""


def _answer_at(prompt: Sequence[int]) -> int:
    """Where the answer begins: after the line that opens the last turn. A prompt without one is followed by all of its answer."""
    opened = next((at for at in range(len(prompt) - 1, -1, -1) if prompt[at] == OPENS), None)
    if opened is None:
        return len(prompt)
    newline = byte_id(ord("\n"))
    return next((at + 1 for at in range(opened, len(prompt)) if prompt[at] == newline), len(prompt))


def unbroken(prompt: Sequence[int], limit: int = 1 << 16) -> list[int]:
    """The whole answer, without its end of turn."""
    saying = Saying(prompt)
    ids: list[int] = []
    while len(ids) < limit and (token := saying.next()) != ENDS:
        ids.append(token)
    return ids
