"""What an engine tells of its cache, block by block: values. Adapters read them, gateway.routing.blocks makes keys of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_MESSAGE_BYTES = 1 << 22
"""Of what an engine tells at once: more is not read. That is some ten steps of the largest prompts, and decoding takes up to 70
times as much for a moment, should it be made to."""

KvHash = int
"""An engine's name for a block and all before it, as 60 bits: only compared, never made."""


class BadEvents(ValueError):
    """What came is not what an engine tells of its cache."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that follow each other are held now. `parent` is the block before the first; None: they are a prompt's first.

    `ids` are their token ids, packed as in gateway.routing.chain: each block has `block_tokens`, but the last, which may have
    fewer. Empty ids: blocks that were told before are held in this tier too. `adapter` is the LoRA's name; `salted` counts the
    blocks before the first that something beside the tokens decides on, None where there is none. `group` is that of layers, 0
    the first; `full`: whether its layers see the whole prompt, None where nothing says so.
    """

    hashes: tuple[KvHash, ...]
    parent: KvHash | None
    ids: bytes
    block_tokens: int
    adapter: str | None = None
    salted: int | None = None
    tier: str = "GPU"
    group: int = 0
    full: bool | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks are no longer held in this tier; None: in none."""

    hashes: tuple[KvHash, ...]
    tier: str | None = None
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is held any more."""


KvEvent = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class KvBatch:
    """Events in their order, of one data-parallel rank. `unknown` counts those of kinds that are not known. `first` and `last`
    are the numbers of the first and last event where events are numbered, not batches."""

    events: tuple[KvEvent, ...]
    rank: int | None = None
    unknown: int = 0
    first: int | None = None
    last: int | None = None


class KvReader(Protocol):
    """Reads what one engine tells, message by message."""

    def batches(self, body: bytes) -> Sequence[KvBatch]:
        """Its events. Raises BadEvents."""
