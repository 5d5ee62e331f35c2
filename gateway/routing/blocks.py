"""What one engine holds, as it tells block by block: its hashes name blocks, their token ids give our own keys.

Invariant: a key is held exactly while all blocks up to its chunk's end are, each in some tier. Blocks may be smaller than a chunk
or larger, and need not divide it: the block in which a chunk ends decides. What the engine hashes, and how, does not matter: a
hash is only compared.

A block costs a row in a few columns, its token ids and an entry by hash. One that left while others go on from it stays as a row
that is not held, since those are matched again once it is stored again. What that changes is seen at the end of each batch, once:
a block that comes and goes and comes again costs no more, however much goes on from it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.routing.block_rows import NO_ROW, Keys, Rows
from gateway.routing.chain import ID_BYTES, token_chain
from gateway.wire.kv import Cleared, KvEvent, KvHash, Removed, Stored

Problem = Literal["unfit", "overfull"]
"""Why no more is followed. `unfit`: the events do not make sense. `overfull`: there are more blocks than are kept."""

_REACHED, _FOREIGN = 1, 2
_TIERS = 8
_BREATH, _KEY_BREATH = 32, 4096  # blocks that are stored, and others, and keys that are told
_MOST_BYTES = 1 << 28  # of token ids


class Run(NamedTuple):
    """Keys that go on from each other, and the first from `after`; None: from the root."""

    after: int | None
    keys: Keys


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What a batch changed, all in all. `cleared` comes first, then `removed`, in any order, then `stored`: each goes on from a
    key that is held by then."""

    stored: tuple[Run, ...] = ()
    removed: Keys = ()
    cleared: bool = False


@dataclass(slots=True)
class _Orphan:
    """A block whose parent is not known."""

    parent: KvHash
    ids: bytes
    tiers: int
    foreign: bool


class Blocks:
    """One engine's. `root` and `chunk_tokens` are those of the model's keys; `adapter` is the name that the engine knows the
    member's model by: events of another adapter say nothing of it. `breathe` is called every few blocks, for threads that let
    others work."""

    def __init__(
        self,
        root: int,
        chunk_tokens: int,
        adapter: str | None = None,
        *,
        most_blocks: int = 1 << 19,
        most_orphans: int = 1 << 12,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        self.problem: Problem | None = None
        self.strange = 0  # stored or removed, and not known
        self._root = root
        self._chunk = chunk_tokens
        self._adapter = adapter
        self._adapted = False
        self._most_blocks = most_blocks
        self._most_orphans = most_orphans
        self._breathe = breathe
        self._tier_bits: dict[str, int] = {}
        self._forget()

    def __len__(self) -> int:
        """Blocks that are known, orphans left out."""
        return len(self._by_hash)

    @property
    def orphans(self) -> int:
        """Blocks whose parents are not known."""
        return len(self._orphans)

    @property
    def keys(self) -> int:
        """How many are held."""
        return len(self._before)

    def apply(self, events: Iterable[KvEvent], *, tell: bool = True) -> KeyChanges:
        """Events in their order; what they change, unless that is not asked for. Nothing, once there is a problem, until all is
        cleared."""
        self._new.clear()
        self._gone.clear()
        cleared = False
        for event in events:
            match event:
                case Stored() if self.problem is None and self._ours(event):
                    if event.ids and event.adapter is not None and not self._adapted:
                        self._adapted = cleared = True  # what came before was of the model without it
                        self.clear()
                    self._store(event)
                case Removed() if self.problem is None and event.group == 0:
                    for each in event.hashes:
                        self._remove(each, ~0 if event.tier is None else self._bit(event.tier))
                case Cleared():
                    cleared = True
                    self.clear()
                case _:
                    pass
        self._move()
        if self.problem is not None:
            self._forget()
            return KeyChanges(cleared=True)
        return KeyChanges(self._runs(self._new), tuple(self._gone), cleared) if tell else KeyChanges()

    def held(self) -> tuple[Run, ...]:
        """All that is held."""
        return self._runs(self._before)

    def clear(self) -> None:
        """The engine holds nothing, and begins anew."""
        self.problem = None
        self._forget()

    def _forget(self) -> None:
        self._rows = Rows()
        self._by_hash: dict[KvHash, int] = {}
        self._orphans: OrderedDict[KvHash, _Orphan] = OrderedDict()
        self._waiting: dict[KvHash, list[KvHash]] = {}
        self._before: dict[int, int] = {}  # each held key, and the one before it
        self._often: dict[int, int] = {}  # held keys whose chunk ends in more than one held block
        self._moved: dict[int, None] = {}  # rows that may have come or gone since that was seen
        self._new: dict[int, None] = {}
        self._gone: dict[int, None] = {}

    def _ours(self, event: Stored) -> bool:
        """Whether it is of layers that see the whole prompt, and of the adapter that we ask for."""
        if event.group != 0 or event.full is False:
            return False
        if not event.ids:
            return True
        return event.adapter == self._adapter if event.adapter is not None else not self._adapted

    def _bit(self, tier: str) -> int:
        if tier not in self._tier_bits and len(self._tier_bits) < _TIERS - 1:
            self._tier_bits[tier] = 1 << len(self._tier_bits)
        return self._tier_bits.get(tier, 1 << _TIERS - 1)  # all others are one

    def _store(self, event: Stored) -> None:
        bit, parent = self._bit(event.tier), event.parent
        size = event.block_tokens * ID_BYTES
        if not event.ids:
            for own in event.hashes:
                self._hold_again(own, bit)
            return
        if size <= 0 or not len(event.hashes) - 1 < len(event.ids) / size <= len(event.hashes):
            self.problem = "unfit"
            return
        for index, own in enumerate(event.hashes):
            foreign = event.salted is not None and index >= event.salted
            ids = event.ids[index * size : (index + 1) * size]
            if parent is None:
                row = self._by_hash.get(own)
                self._settle(own, self._row(own, NO_ROW, ids, foreign) if row is None else row, bit)
            else:
                self._place(own, _Orphan(parent, ids, bit, foreign))
            if self.problem is not None:
                return
            parent = own
            if index % _BREATH == _BREATH - 1:
                self._breathe()

    def _hold_again(self, own: KvHash, bit: int) -> None:
        row = self._by_hash.get(own)
        if row is not None:
            self._hold(row, bit)
        elif own in self._orphans:
            self._orphans[own].tiers |= bit
        else:
            self.strange += 1

    def _place(self, own: KvHash, block: _Orphan) -> None:
        """A block that goes on from another: known, or to come."""
        row = self._by_hash.get(own)
        if row is None:
            parent = self._by_hash.get(block.parent)
            if parent is None:
                self._await(own, block)
                return
            row = self._row(own, parent, block.ids, block.foreign)
        self._settle(own, row, block.tiers)

    def _settle(self, own: KvHash, row: int, tiers: int) -> None:
        """Holds it, and takes in what waited for it."""
        if row == NO_ROW:
            return
        self._hold(row, tiers)
        found = self._waiting.pop(own, [])
        while found:
            name = found.pop()
            block = self._orphans.pop(name)
            row = self._row(name, self._by_hash[block.parent], block.ids, block.foreign)
            if row == NO_ROW:
                return
            self._hold(row, block.tiers)
            found += self._waiting.pop(name, [])

    def _await(self, own: KvHash, block: _Orphan) -> None:
        known = self._orphans.get(own)
        if known is not None:
            known.tiers |= block.tiers
            return
        self._orphans[own] = block
        self._waiting.setdefault(block.parent, []).append(own)
        if len(self._orphans) > self._most_orphans:
            self._lose(next(iter(self._orphans)))

    def _lose(self, own: KvHash) -> None:
        block = self._orphans.pop(own)
        waiting = self._waiting[block.parent]
        waiting.remove(own)
        if not waiting:
            del self._waiting[block.parent]

    def _row(self, own: KvHash, parent: int, ids: bytes, foreign: bool) -> int:
        """A new row with the keys whose chunks end in it; none where there is no room."""
        rows = self._rows
        if len(self._by_hash) >= self._most_blocks:
            self._move()  # some may have left, but not that which it goes on from
            if parent != NO_ROW and self._by_hash.get(rows.hashes[parent]) != parent:
                self.problem = "overfull"
                return NO_ROW
        if len(self._by_hash) >= self._most_blocks or (len(rows.keys) + 1) * rows.room(len(ids)) > _MOST_BYTES:
            self.problem = "overfull"
            return NO_ROW
        if own in self._orphans:  # it was stored before with a parent that never came
            self._lose(own)
        row = self._by_hash[own] = rows.add(own, parent, ids)
        if foreign or (parent != NO_ROW and rows.flags[parent] & _FOREIGN):
            rows.flags[row] = _FOREIGN
            return row
        started = (rows.ends[parent] if parent != NO_ROW else 0) % self._chunk
        if started + len(ids) // ID_BYTES >= self._chunk:
            before, open_ids = self._open(parent, started)
            found = token_chain(open_ids + ids, self._chunk, before)
            rows.keys[row] = found[0] if len(found) == 1 else found
        return row

    def _open(self, row: int, tokens: int) -> tuple[int, bytes]:
        """The last key up to the end of a row, and the ids of the `tokens` after it."""
        rows, parts = self._rows, []
        while row != NO_ROW:
            parts.append(rows.ids_of(row))
            found = rows.keys[row]
            if found is not None:
                last = found if isinstance(found, int) else found[-1]
                return last, b"".join(reversed(parts))[-tokens * ID_BYTES :] if tokens else b""
            row = rows.parent[row]
        return self._root, b"".join(reversed(parts))

    def _hold(self, row: int, tiers: int) -> None:
        self._rows.tiers[row] |= tiers
        self._moved[row] = None

    def _move(self) -> None:
        """Sees what came and what is gone: what is gone first, so that each block changes once at the most."""
        rows, moved = self._rows, self._moved
        for row in moved:
            if not rows.tiers[row] and rows.flags[row] & _REACHED:
                self._unreach(row)
        for row in moved:
            parent = rows.parent[row]
            known = parent == NO_ROW or rows.flags[parent] & _REACHED
            if known and rows.tiers[row] and not rows.flags[row] & _REACHED:
                self._reach(row)
        for row in moved:
            left = row if self._by_hash.get(rows.hashes[row]) == row else NO_ROW
            while left != NO_ROW and not rows.tiers[left] and rows.child[left] == NO_ROW:
                parent = rows.parent[left]
                del self._by_hash[rows.hashes[left]]
                rows.drop(left)
                left = parent
        moved.clear()

    def _reach(self, row: int) -> None:
        """All up to it is held: so is what goes on from it."""
        rows, found, count = self._rows, [row], 0
        while found:
            each, count = found.pop(), count + 1
            if count % _KEY_BREATH == 0:
                self._breathe()
            rows.flags[each] |= _REACHED
            before = None
            for key in self._keys_of(each):
                if key not in self._before:
                    self._before[key] = self._last_key(rows.parent[each]) if before is None else before
                    if key in self._gone:
                        del self._gone[key]
                    else:
                        self._new[key] = None
                else:
                    self._often[key] = self._often.get(key, 1) + 1
                before = key
            found += [child for child in rows.children(each) if rows.tiers[child]]

    def _unreach(self, row: int) -> None:
        """It is not held: what goes on from it is no longer matched."""
        rows, found, count = self._rows, [row], 0
        while found:
            each, count = found.pop(), count + 1
            if count % _KEY_BREATH == 0:
                self._breathe()
            rows.flags[each] &= ~_REACHED
            for key in self._keys_of(each):
                often = self._often.pop(key, 1) - 1
                if often > 1:
                    self._often[key] = often
                elif not often:
                    del self._before[key]
                    if key in self._new:
                        del self._new[key]
                    else:
                        self._gone[key] = None
            found += [child for child in rows.children(each) if rows.flags[child] & _REACHED]

    def _remove(self, own: KvHash, tiers: int) -> None:
        row = self._by_hash.get(own)
        if row is None:
            orphan = self._orphans.get(own)
            if orphan is None:
                self.strange += 1
                return
            orphan.tiers &= ~tiers
            if not orphan.tiers:
                self._lose(own)
            return
        self._rows.tiers[row] &= ~tiers & 0xFF
        self._moved[row] = None

    def _keys_of(self, row: int) -> Keys:
        found = self._rows.keys[row]
        return () if found is None else (found,) if isinstance(found, int) else found

    def _last_key(self, row: int) -> int:
        """The last key up to the end of a row."""
        rows = self._rows
        while row != NO_ROW:
            if found := self._keys_of(row):
                return found[-1]
            row = rows.parent[row]
        return self._root

    def _runs(self, keys: Iterable[int]) -> tuple[Run, ...]:
        """These keys, of which each comes after the one before it, in as few runs as that allows."""
        runs, ends = list[tuple[int, list[int]]](), dict[int, list[int]]()
        for count, key in enumerate(keys, 1):
            before = self._before[key]
            run = ends.pop(before, None)
            if run is None:
                runs.append((before, run := []))
            run.append(key)
            ends[key] = run
            if count % _KEY_BREATH == 0:
                self._breathe()
        return tuple([Run(None if before == self._root else before, tuple(run)) for before, run in runs])
