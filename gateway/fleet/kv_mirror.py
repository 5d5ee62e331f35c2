"""What one engine holds, from what it tells: in order, without a hole, from its beginning; or why that is not known.

Invariant: it is `complete` only while every event since the engine's start, or since it last said that it holds nothing, was
applied in its order. Batches are numbered from 0; a number that goes back, with another content, is another process.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from gateway.routing.blocks import Blocks, KeyChanges, Run
from gateway.wire.kv import BadEvents, Cleared, KvBatch, KvEvent, KvReader, Removed, Stored

Reason = Literal[
    "",
    "starting",
    "unreachable",
    "refused",
    "history",
    "gap",
    "replay",
    "oversize",
    "unreadable",
    "rank",
    "unfit",
    "overfull",
    "behind",
    "socket",
    "parity",
]
"""Why what an engine tells is not followed. `starting`: it has told nothing yet. `unreachable`: it cannot serve. `refused`: it
has no such route, or answers with an error. `history`: it no longer has what it told first.
`gap`: what was missed cannot be asked for. `replay`: it was asked for, and did not come. `oversize`: more bytes came at once than
are read: in a message, at which its connection breaks off, or of what was asked for. `unreadable`: what came is no event.
`rank`: it is another data-parallel rank's. `unfit`, `overfull`: see gateway.routing.blocks. `behind`: the gateway is too slow.
`socket`: the endpoint cannot be used. `parity`: of prompts that it answered it told nothing, or reported nothing of what it had
told."""

Verdict = Literal["next", "known", "gap", "anew"]

_RECENT = 4096
PIECE = 4096  # keys that are handed over at once
_MOST_PENDING = 1024  # events; what more of them change is told with all that is held


@dataclass(frozen=True, slots=True)
class News:
    """What the loop is told. `reason`: None where that stays; empty: it is followed from now on, `life` numbers since which start
    of the engine, and `changes` have all that it holds."""

    reason: Reason | None = None
    life: int = 0
    changes: KeyChanges = field(default_factory=KeyChanges)
    block_tokens: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    gaps: int = 0
    restarts: int = 0


class Mirror:
    """Of one engine, of the rank that is a member's own."""

    def __init__(self, reader: KvReader, blocks: Blocks, rank: int | None) -> None:
        self.reader = reader
        self._blocks = blocks
        self._rank = rank or 0
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._pending: list[KvEvent] = []
        self._kinds: Counter[str] = Counter()
        self._gaps = 0
        self._restarts = 0
        self._reason: Reason = "starting"
        self._life = 0
        self._said: tuple[Reason, int] = ("starting", 0)
        self._block_tokens = 0
        self.expected: int | None = None

    @property
    def complete(self) -> bool:
        """Whether what it holds is known."""
        return not self._reason

    @property
    def reason(self) -> Reason:
        """Why it is not; empty where it is."""
        return self._reason

    def verdict(self, number: int, payload: bytes) -> Verdict:
        """What a batch is, by its number: the next one, one that was had, one after others, or one of another process."""
        if number == (self.expected or 0):
            return "next"
        if self.expected is None or number > self.expected:
            return "gap"
        return "known" if self._recent.get(number) == hash(payload) else "anew"

    def begin(self) -> None:
        """The engine's first batch is to come: whatever was known is of another process."""
        self._whole()
        self.expected = 0
        self._recent.clear()

    def fail(self, reason: Reason) -> None:
        """What it holds is no longer known."""
        self._reason = reason
        self._pending.clear()
        self._blocks.clear()

    def count_gap(self) -> None:
        """Something was missed."""
        self._gaps += 1

    def another(self) -> None:
        """It is another process than it was: its first batch is to come."""
        self._restarts += 1
        self.begin()

    def skip_to(self, number: int) -> None:
        """The batches before this one are lost."""
        self.expected = number

    def take(self, number: int, payload: bytes) -> None:
        """Applies the next batch."""
        self.expected = number + 1
        self._recent[number] = hash(payload)
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)
        try:
            for batch in self.reader.batches(payload):
                self.read(batch)
        except BadEvents:
            self._kinds["unreadable"] += 1
            self.fail("unreadable")

    def read(self, batch: KvBatch) -> None:
        """Applies events that are known to be the next."""
        events = batch.events
        self._count(batch)
        if batch.rank not in (None, self._rank):
            self.fail("rank")
            return
        if self._reason:
            ends = [index for index, each in enumerate(events) if isinstance(each, Cleared)]
            if not ends:
                return
            self._whole()
            events = events[ends[-1] :]
        self._pending += events
        if len(self._pending) > _MOST_PENDING:
            self.again()
            self._blocks.apply(self._pending, tell=False)
            self._pending.clear()

    def news(self) -> list[News]:
        """What is new since this was last asked, for the loop; first of all whether it is followed."""
        followed = (self._reason, self._life) == self._said
        changes = self._blocks.apply(self._pending, tell=followed)
        self._pending.clear()
        if not followed:
            changes = KeyChanges(self._blocks.held())
        if not self._reason and self._blocks.problem is not None:
            self.fail(self._blocks.problem)
        kinds, gaps, restarts = dict(self._kinds), self._gaps, self._restarts
        self._kinds, self._gaps, self._restarts = Counter(), 0, 0
        state = (self._reason, self._life)
        new, self._said = state != self._said, state
        pieces = [] if self._reason else [*_pieces(changes)]
        if not pieces and not (new or kinds or gaps or restarts):
            return []
        reason, head = self._reason if new else None, pieces[0] if pieces else KeyChanges()
        first = News(reason, self._life, head, self._block_tokens, kinds, gaps, restarts)
        return [first, *(News(None, self._life, each) for each in pieces[1:])]

    def again(self) -> None:
        """The loop missed news: it is told all of it anew."""
        self._said = ("behind", -1)

    def _whole(self) -> None:
        self._reason = ""
        self._life += 1
        self._pending.clear()
        self._blocks.clear()

    def _count(self, batch: KvBatch) -> None:
        for each in batch.events:
            match each:
                case Stored():
                    self._kinds["stored"] += 1
                    self._block_tokens = max(self._block_tokens, each.block_tokens)
                case Removed():
                    self._kinds["removed"] += 1
                case Cleared():
                    self._kinds["cleared"] += 1
        if batch.unknown:
            self._kinds["unknown"] += batch.unknown


def _pieces(changes: KeyChanges) -> Iterator[KeyChanges]:
    """The same changes, in their order, in pieces of `PIECE` keys at most; none of those that change nothing."""
    cleared, removed = changes.cleared, changes.removed
    while len(removed) > PIECE:
        yield KeyChanges((), removed[:PIECE], cleared)
        removed, cleared = removed[PIECE:], False
    piece, size = list[Run](), len(removed)
    for run in chain.from_iterable(map(_short, changes.stored)):
        size += len(run.keys)
        if size > PIECE:
            yield KeyChanges(tuple(piece), removed, cleared)
            piece, size, removed, cleared = [], len(run.keys), (), False
        piece.append(run)
    if piece or removed or cleared:
        yield KeyChanges(tuple(piece), removed, cleared)


def _short(run: Run) -> Iterator[Run]:
    """The same in runs of `PIECE` keys at most."""
    after, keys = run
    for start in range(0, len(keys), PIECE):
        yield Run(keys[start - 1] if start else after, keys[start : start + PIECE])
