"""The ids of a prompt from those of its segments, most of which earlier prompts had too: an agent's turn costs its new messages.

A tokenizer cuts its special tokens out of the text before it does anything else. So text may be tokenised in parts, each of which
begins where a special token is sure to be found, and the parts' ids joined are those of the whole. Sure is a place where one of
the chosen tokens stands, provided that no special token can begin before it and reach into it: `cut_tokens` chooses only such.

Invariant: `encode` gives exactly the ids of `Tokenizer.encode`, or of `MarkedText.encode` for a text with marks, and neither ever
gets the other's from the cache. The cache holds at most `max_bytes`.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from itertools import chain

from gateway.prompt.neutral import MarkedText
from gateway.prompt.tokenizer import AddedText, Tokenizer

DEFAULT_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 200  # of a segment's key, array and place in the order, beside its ids
_ID_BYTES = 4


def cut_tokens(added: Sequence[AddedText], shown: str) -> tuple[tuple[str, ...], str]:
    """The special tokens of a rendered text at which prompts may be cut, and, where there are none, why."""
    if any(token.swallows for token in added):
        return (), "a special token takes blanks or words around it along"
    first = [token.text for token in added if not token.normalized]
    cuts = tuple(text for text in first if text in shown and not any(_reaches_into(other, text) for other in first))
    return cuts, "" if cuts else "the template writes no special token that is sure to be found"


def _reaches_into(other: str, text: str) -> bool:
    """Whether `other`, begun before `text` does, could take a part of it."""
    tails = (other[start:] for start in range(1, len(other)))
    return any(text.startswith(tail) or tail.startswith(text) for tail in tails)


class Segments:
    """A tokenizer with a cache of segments. Calls may come from several threads where `guard` is a lock."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        cuts: Iterable[str],
        *,
        guard: AbstractContextManager[object] | None = None,
        max_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._cut = re.compile(f"(?={'|'.join(map(re.escape, cuts))})")
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._bytes = 0
        self._guard = guard if guard is not None else nullcontext()

    @property
    def held_bytes(self) -> int:
        """What the cache holds now."""
        return self._bytes

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of this text."""
        return self._joined(text, _key, self._tokenizer.encode_all)

    def encode_marked(self, text: str, mark: str, marked: MarkedText) -> tuple[int, ...]:
        """The ids of this text without its marks, each of which stands in what is text, whatever it spells."""
        return self._joined(
            text,
            lambda segment: _key(segment, mark if mark in segment else ""),
            lambda segments: self._encode_mixed(segments, mark, marked),
        )

    def _encode_mixed(self, segments: list[str], mark: str, marked: MarkedText) -> list[tuple[int, ...]]:
        plain = iter(self._tokenizer.encode_all([segment for segment in segments if mark not in segment]))
        return [marked.encode(segment, mark) if mark in segment else next(plain) for segment in segments]

    def _joined(
        self, text: str, key_of: Callable[[str], bytes], encode_all: Callable[[list[str]], list[tuple[int, ...]]]
    ) -> tuple[int, ...]:
        segments = [segment for segment in self._cut.split(text) if segment]
        keys = [key_of(segment) for segment in segments]
        found = self._look_up(keys)
        missing = {key: segment for key, segment in zip(keys, segments, strict=True) if key not in found}
        if missing:
            fresh = dict(zip(missing, map(_packed, encode_all(list(missing.values()))), strict=True))
            self._keep(fresh)
            found |= fresh
        return tuple(chain.from_iterable([found[key] for key in keys]))

    def _look_up(self, keys: Iterable[bytes]) -> "dict[bytes, array[int]]":
        found: dict[bytes, array[int]] = {}
        with self._guard:
            for key in keys:
                ids = self._known.get(key)
                if ids is not None:
                    self._known.move_to_end(key)
                    found[key] = ids
        return found

    def _keep(self, fresh: "dict[bytes, array[int]]") -> None:
        with self._guard:
            for key, ids in fresh.items():
                if key not in self._known:
                    self._known[key] = ids
                    self._bytes += _size(ids)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(self._known.popitem(last=False)[1])


def _key(segment: str, mark: str = "") -> bytes:
    """Which character is the mark matters: another request's client may have written it."""
    return blake2b(segment.encode(), digest_size=16, person=mark.encode()).digest()


def _packed(ids: Sequence[int]) -> "array[int]":
    return array("I", ids)


def _size(ids: "array[int]") -> int:
    return _ENTRY_BYTES + _ID_BYTES * len(ids)
