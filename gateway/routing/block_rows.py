"""The blocks of an engine as columns: which goes on from which, where each ends, its token ids, the keys whose chunks end in it.

Objects would take three times the memory, and there are as many blocks as an engine's cache has.
"""

from array import array
from collections.abc import Iterator

from gateway.routing.chain import ID_BYTES
from gateway.wire.kv import KvHash

NO_ROW = -1

Keys = tuple[int, ...]


class Rows:
    """The columns. A row that is free is in `free`; `stride` is the room for ids in a row, in bytes."""

    __slots__ = ("child", "ends", "flags", "free", "hashes", "ids", "keys", "left", "parent", "right", "stride", "tiers")

    def __init__(self) -> None:
        self.parent, self.child, self.left, self.right = array("i"), array("i"), array("i"), array("i")
        self.ends = array("I")  # where it ends, in tokens
        self.tiers, self.flags, self.ids = bytearray(), bytearray(), bytearray()
        self.keys: list[Keys | int | None] = []  # whose chunks end here
        self.hashes: list[KvHash] = []
        self.free: list[int] = []
        self.stride = 0

    def add(self, own: KvHash, parent: int, ids: bytes) -> int:
        """A new row, which is not held yet."""
        if len(ids) > self.stride:
            self._widen(self.room(len(ids)))
        end = len(ids) // ID_BYTES + (self.ends[parent] if parent != NO_ROW else 0)
        row = self.free.pop() if self.free else self._grown()
        self.parent[row], self.child[row], self.left[row], self.right[row] = parent, NO_ROW, NO_ROW, NO_ROW
        self.ends[row], self.tiers[row], self.flags[row] = end, 0, 0
        self.keys[row], self.hashes[row] = None, own
        self.ids[row * self.stride : row * self.stride + len(ids)] = ids
        if parent != NO_ROW:
            self.right[row] = first = self.child[parent]
            if first != NO_ROW:
                self.left[first] = row
            self.child[parent] = row
        return row

    def room(self, size: int) -> int:
        """The stride with room for so many bytes: twice as much as before at the least, as all rows move then."""
        return max(size, 2 * self.stride) if size > self.stride else self.stride

    def drop(self, row: int) -> None:
        """A row that no other goes on from."""
        left, right, parent = self.left[row], self.right[row], self.parent[row]
        if left != NO_ROW:
            self.right[left] = right
        elif parent != NO_ROW:
            self.child[parent] = right
        if right != NO_ROW:
            self.left[right] = left
        self.keys[row] = None
        self.free.append(row)

    def children(self, row: int) -> Iterator[int]:
        """The rows that go on from it."""
        each = self.child[row]
        while each != NO_ROW:
            yield each
            each = self.right[each]

    def size(self, row: int) -> int:
        """Its tokens."""
        parent = self.parent[row]
        return self.ends[row] - (self.ends[parent] if parent != NO_ROW else 0)

    def ids_of(self, row: int) -> bytes:
        """Its token ids."""
        at = row * self.stride
        return bytes(self.ids[at : at + self.size(row) * ID_BYTES])

    def _grown(self) -> int:
        for column in (self.parent, self.child, self.left, self.right, self.ends):
            column.append(0)
        self.tiers.append(0)
        self.flags.append(0)
        self.ids.extend(bytes(self.stride))
        self.keys.append(None)
        self.hashes.append(0)
        return len(self.keys) - 1

    def _widen(self, stride: int) -> None:
        """Makes room for longer blocks than any before."""
        before, old = self.ids, self.stride
        self.ids = bytearray(stride * len(self.keys))
        for row in range(len(self.keys)):
            self.ids[row * stride : row * stride + old] = before[row * old : (row + 1) * old]
        self.stride = stride
