"""What engines tell of their caches, bytes to values: vLLM's and SGLang's messages, and TensorRT-LLM's list.

Invariant: any bytes give batches or `BadEvents`, within the bounds below. vLLM and SGLang write msgpack; versions differ in
whether a batch and an event are maps, tagged by `type`, or arrays, tagged by their first item, and in which fields they have:
those at their default are left out.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.wire.jsonio import Decoder, JsonError
from gateway.wire.kv import MAX_MESSAGE_BYTES, BadEvents, Cleared, KvBatch, KvEvent, KvHash, Removed, Stored

MAX_LIST_BYTES = 1 << 24  # TensorRT-LLM takes some sixty bytes for a token
MAX_BLOCK_TOKENS = 1 << 12
_HASH_BITS = (1 << 60) - 1  # two digits of an int: 32 bytes in a process
_WORD_CHARS = 128
_FULL = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_BATCH_FIELDS = ("ts", "events", "data_parallel_rank")
# The order of their arrays. Maps have the same names.
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")
_MSGPACK = msgspec.msgpack.Decoder()


class ZmqEvents:
    """vLLM's and SGLang's: one message, one batch."""

    def batches(self, body: bytes) -> Sequence[KvBatch]:
        """The batch. Raises BadEvents."""
        if len(body) > MAX_MESSAGE_BYTES:
            raise BadEvents(f"a batch of more than {MAX_MESSAGE_BYTES} bytes")
        try:
            batch = _named(_MSGPACK.decode(body), _BATCH_FIELDS)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:  # unhashable keys are a TypeError
            raise BadEvents(f"no msgpack: {error}") from None
        told = _listed(batch.get("events"))
        rank = batch.get("data_parallel_rank", batch.get("attn_dp_rank"))
        events, unknown = _read(told, _tagged)
        return (KvBatch(events, None if rank is None else _number(rank), unknown),)


class TrtllmEvents:
    """TensorRT-LLM's: a JSON list of events, each with a number. Layers with a shorter window than the longest are told apart by
    theirs: the longest window seen so far is group 0."""

    def __init__(self) -> None:
        self._window = 0

    def batches(self, body: bytes) -> Sequence[KvBatch]:
        """A batch for each run of events of a rank whose numbers follow each other. Raises BadEvents."""
        if len(body) > MAX_LIST_BYTES:
            raise BadEvents(f"a list of more than {MAX_LIST_BYTES} bytes")
        try:
            rows = _listed(_JSON.decode(body))
        except (JsonError, RecursionError) as error:
            raise BadEvents(f"no JSON list: {error}") from None
        ranks: dict[int | None, list[list[tuple[int, Any]]]] = {}
        for row in rows:
            found = _mapping(row)
            rank, number = found.get("attention_dp_rank"), _number(found.get("event_id"))
            runs = ranks.setdefault(None if rank is None else _number(rank), [])
            if not runs or runs[-1][-1][0] != number - 1:
                runs.append([])
            runs[-1].append((number, found))
        batches = []
        for rank, runs in ranks.items():
            for run in runs:
                events, unknown = _read([found for _, found in run], self._events)
                batches.append(KvBatch(events, rank, unknown, run[0][0], run[-1][0]))
        return batches

    def _events(self, row: Any) -> list[KvEvent] | None:
        data = _mapping(row.get("data"))
        window = _number(row.get("window_size") or 0)
        self._window = max(self._window, window)
        group = int(window < self._window)
        match data.get("type"):
            case "stored":
                return list(_trtllm_stored(data, group))
            case "removed":
                return [Removed(_hashes(data.get("block_hashes")), None, group)]
            case "updated":
                return _trtllm_moved(data, group)
            case "created":
                return []
            case _:
                return None


_JSON: Decoder[Any] = Decoder(list)


def _read(rows: Sequence[Any], read: Callable[[Any], list[KvEvent] | None]) -> tuple[tuple[KvEvent, ...], int]:
    """The events of rows, and how many rows were of no known kind."""
    events: list[KvEvent] = []
    unknown = 0
    for row in rows:
        found = read(row)
        if found is None:
            unknown += 1
        else:
            events += found
    return tuple(events), unknown


def _tagged(row: Any) -> list[KvEvent] | None:
    """An event that is tagged, as a map or as an array; None: of a kind that is not known."""
    tag = row.get("type") if isinstance(row, dict) else row[0] if isinstance(row, list) and row else None
    if not isinstance(tag, str):
        raise BadEvents("an event without a type")
    rest = row if isinstance(row, dict) else row[1:]
    match tag:
        case "BlockStored":
            return [_stored(_named(rest, _STORED_FIELDS))]
        case "BlockRemoved":
            fields = _named(rest, _REMOVED_FIELDS)
            told = fields.get("medium") is not None
            return [Removed(_hashes(fields.get("block_hashes")), _tier(fields) if told else None, _group(fields))]
        case "AllBlocksCleared":
            return [Cleared()]
        case _:
            return None


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes, parent = _hashes(fields.get("block_hashes")), fields.get("parent_block_hash")
    ids, size = _packed(_listed(fields.get("token_ids"))), _number(fields.get("block_size", 0))
    adapter = _word(fields.get("lora_name"))
    if adapter is None and fields.get("lora_id") is not None:
        adapter = f"#{_number(fields['lora_id'])}"
    kind = _word(fields.get("kv_cache_spec_kind"))
    full = None if kind is None else kind in _FULL
    if ids and full is not False:
        _fits(hashes, ids, size)
    return Stored(
        hashes,
        None if parent is None else _hash(parent),
        ids,
        size,
        adapter,
        _salted(fields.get("extra_keys"), adapter),
        _tier(fields),
        _group(fields),
        full,
    )


def _fits(hashes: Sequence[KvHash], ids: bytes, size: int) -> None:
    if not 1 <= size <= MAX_BLOCK_TOKENS:
        raise BadEvents(f"blocks of {size} tokens")
    if len(ids) != len(hashes) * size * array("I").itemsize:
        raise BadEvents("blocks with more or fewer tokens than they have room for")


def _salted(extra: Any, adapter: str | None) -> int | None:
    """How many blocks come before the first that something beside its tokens, and the adapter, decides on."""
    for index, keys in enumerate(_listed(extra) if extra is not None else ()):
        if keys is not None and [key for key in _listed(keys) if key != adapter]:
            return index
    return None


def _trtllm_stored(data: Mapping[str, Any], group: int) -> list[Stored]:
    """A block an event: the last of a prompt may have fewer tokens."""
    parent, events = data.get("parent_hash"), []
    for each in _listed(data.get("blocks")):
        block = _mapping(each)
        tokens = [_mapping(token) for token in _listed(block.get("tokens"))]
        ids = _packed([token.get("token_id") for token in tokens])
        own, adapter = _hash(block.get("block_hash")), block.get("lora_id")
        odd = bool(block.get("cache_salt") or block.get("mm_keys") or any(token.get("token_extra_id") for token in tokens))
        if ids:
            _fits((own,), ids, len(tokens))
        events.append(
            Stored(
                (own,),
                None if parent is None else _hash(parent),
                ids,
                len(tokens),
                None if adapter is None else f"#{_number(adapter)}",
                0 if odd else None,
                _level(block.get("cache_level", 0)),
                group,
            )
        )
        parent = block.get("block_hash")
    return events


def _trtllm_moved(data: Mapping[str, Any], group: int) -> list[KvEvent]:
    """Another level, or another priority, which says nothing here."""
    level = data.get("cache_level")
    if level is None:
        return []
    diff, own = _mapping(level), (_hash(data.get("block_hash")),)
    to, before = _level(diff.get("new_value")), _level(diff.get("old_value"))
    return [Stored(own, None, b"", 0, tier=to, group=group), Removed(own, before, group)] if to != before else []


def _level(level: Any) -> str:
    return "GPU" if _number(level) == 0 else f"level {_number(level)}"


def _named(value: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """The fields of a map, or of an array in this order; arrays of later versions may be longer."""
    if isinstance(value, list):
        return dict(zip(names, value, strict=False))
    return _mapping(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadEvents("no map where there must be one")
    return value


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise BadEvents("no list where there must be one")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value >= 1 << 63:
        raise BadEvents("no number where there must be one")
    return value


def _word(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadEvents("no text where there must be one")
    return value if value is None else value[:_WORD_CHARS]


def _tier(fields: Mapping[str, Any]) -> str:
    """The medium, and whose it is where several share one."""
    medium, owner = _word(fields.get("medium")) or "GPU", _word(fields.get("ownership"))
    return medium if owner is None else f"{medium} of {owner}"


def _group(fields: Mapping[str, Any]) -> int:
    group = fields.get("group_idx")
    return 0 if group is None else _number(group)


def _hashes(value: Any) -> tuple[KvHash, ...]:
    return tuple([_hash(each) for each in _listed(value)])


def _hash(value: Any) -> KvHash:
    """Numbers, signed or not, digests, and digests that are written: the last 60 bits of each."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _HASH_BITS
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big") & _HASH_BITS
    try:
        return int(value, 16) & _HASH_BITS if isinstance(value, str) else _no_hash()
    except ValueError:
        return _no_hash()


def _no_hash() -> KvHash:
    raise BadEvents("a block without a hash")


def _packed(ids: Sequence[Any]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        raise BadEvents("token ids that are none") from None
