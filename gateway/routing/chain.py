"""Chained keys of a prompt: key i stands for its chunks 0 to i, so that two prompts share it only where they share all up to it.

The keys are our own, whatever the engines hash: 56 bits of SHA-256 over the key before and the chunk, the same in every
process, and not to be forged by a client who wants another's prompt to look cached. A chain can be gone on with from any of its
keys.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

ID_BYTES = 4
_KEY_BYTES = 7  # an int of 56 bits has two digits: 32 bytes in a process, where one of 64 bits has 48
_ANCHOR = 8  # the first place, in chunks, where prompts are told apart; the next is twice as far
_ALIKE = 4  # prompts that are compared, for one place

Places = list[tuple[int, int, bytes]]


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as the chain reads them: 4 bytes each, in the processor's order."""
    return array("I", ids).tobytes()


def root_key(*parts: str) -> int:
    """The key before the first chunk: of what else decides whether a prompt is cached (model, adapter, salt, template)."""
    return int.from_bytes(sha256("\0".join(parts).encode()).digest()[:_KEY_BYTES], "little")


def token_chain(ids: Sequence[int] | bytes, chunk_tokens: int, root: int = 0) -> tuple[int, ...]:
    """One key a whole chunk of token ids, or of their packed bytes, which costs half as much."""
    data = ids if isinstance(ids, bytes) else packed(ids)
    return tuple(_continued(root, data, 0, chunk_tokens * ID_BYTES))


def text_chain(parts: Iterable[bytes], chunk_bytes: int, root: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One key a chunk of text, and at which byte of all the text each chunk ends: for engines that make the prompt themselves.
    Cut every `chunk_bytes`, and at the end of each part (the tools, a message), so that a conversation keeps its keys when a
    message is added, and two long messages share those of the chunks with which both begin."""
    keys, ends = list[int](), list[int]()
    before, end = root, 0
    for part in parts:
        for at in range(0, max(len(part), 1), chunk_bytes):
            chunk = part[at : at + chunk_bytes]
            last = b"\1" if at + chunk_bytes >= len(part) else b"\0"  # so that a part and its two halves are not the same
            keys += _continued(before, last + chunk, 0, 1 + len(chunk))
            before, end = keys[-1], end + len(chunk)
            ends.append(end)
    return tuple(keys), tuple(ends)


def _continued(key: int, data: bytes, start: int, step: int) -> list[int]:
    """The keys of the whole chunks of `data` from `start` on, after this key."""
    keys: list[int] = []
    before = key.to_bytes(_KEY_BYTES, "little")
    for at in range(start, len(data) - step + 1, step):
        before = sha256(before + data[at : at + step]).digest()[:_KEY_BYTES]
        keys.append(int.from_bytes(before, "little"))
    return keys


@dataclass(frozen=True, slots=True)
class _Known:
    """A prompt of before: its whole chunks, and their keys."""

    data: bytes
    keys: tuple[int, ...]


class ChainCache:
    """The chains of recent prompts, so that a turn of a conversation costs its new tokens.

    A prompt of before is found by what stands at doubling places of it, and then compared itself: nothing is believed of a hash.
    At most `max_bytes` of prompts are kept, the last used. Shorter prompts than 8 chunks are not worth it.
    """

    def __init__(self, chunk_tokens: int, max_bytes: int = 32 << 20) -> None:
        self._step = chunk_tokens * ID_BYTES
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._places: OrderedDict[tuple[int, int, bytes], deque[int]] = OrderedDict()
        self._last = 0

    @property
    def held_bytes(self) -> int:
        """What the prompts take."""
        return self._bytes

    def chain(self, ids: Sequence[int] | bytes, root: int = 0) -> tuple[int, ...]:
        """As `token_chain`."""
        data = ids if isinstance(ids, bytes) else packed(ids)
        places = self._named(data, root)
        name, alike = self._found(data, places)
        known = self._known[name].keys[:alike] if alike else ()
        keys = known + tuple(_continued(known[-1] if known else root, data, alike * self._step, self._step))
        if not places:
            return keys
        if alike and alike == len(self._known[name].keys):  # the same prompt, or one that goes on with it
            if len(keys) == alike:
                self._known.move_to_end(name)
                return keys
            self._forget(name)
        self._keep(_Known(data[: len(keys) * self._step], keys), places)
        return keys

    def _named(self, data: bytes, root: int) -> Places:
        """The places by which a prompt is known, the furthest first."""
        places: Places = []
        at, end = _ANCHOR, len(data) // self._step
        while at <= end:
            places.append((root, at, data[(at - 1) * self._step : at * self._step]))
            at *= 2
        return places[::-1]

    def _found(self, data: bytes, places: Places) -> tuple[int, int]:
        """A prompt of before that shares the most with this one, and how many chunks; 0 and 0: none."""
        for place in places:
            best = (0, 0)
            for name in self._places.get(place, ()):
                if name in self._known:
                    best = max(best, (self._alike(data, self._known[name]), name))
            if best[0]:
                return best[1], best[0]
        return 0, 0

    def _alike(self, data: bytes, known: _Known) -> int:
        """How many whole chunks they share."""
        if data.startswith(known.data):
            return len(known.keys)
        low, high = 0, min(len(known.keys), len(data) // self._step)
        while low < high:
            middle = (low + high + 1) // 2
            if data[low * self._step : middle * self._step] == known.data[low * self._step : middle * self._step]:
                low = middle
            else:
                high = middle - 1
        return low

    def _keep(self, known: _Known, places: Places) -> None:
        self._last += 1
        self._known[self._last] = known
        self._bytes += len(known.data)
        for place in places:
            self._places.setdefault(place, deque(maxlen=_ALIKE)).append(self._last)
            self._places.move_to_end(place)
        while self._bytes > self._max_bytes and self._known:
            self._forget(next(iter(self._known)))
        while len(self._places) > 16 * (len(self._known) + 1):
            self._places.popitem(last=False)

    def _forget(self, name: int) -> None:
        self._bytes -= len(self._known.pop(name).data)
