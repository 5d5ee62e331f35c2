"""What engines tell of their caches: every version's shape gives the same events, and other bytes one error."""

import contextlib
import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import kv_events
from engines.kv_events import TrtllmEvents, ZmqEvents
from engines.registry import known, make
from gateway.routing.blocks import Blocks
from gateway.routing.chain import token_chain
from gateway.wire.kv import BadEvents, Cleared, KvBatch, KvEvent, Removed, Stored

MAPS: list[dict[str, Any]] = [
    {"type": "BlockStored", "block_hashes": [7, -1], "parent_block_hash": None, "token_ids": [1, 2, 3, 4], "block_size": 2},
    {"type": "BlockRemoved", "block_hashes": [b"\x00" * 24 + b"\x07" * 8], "medium": "CPU", "group_idx": 2},
    {"type": "AllBlocksCleared"},
]
ARRAYS: list[list[Any]] = [
    ["BlockStored", [7, (1 << 64) - 1], None, [1, 2, 3, 4], 2, None, None],
    ["BlockRemoved", [0x0707070707070707], "CPU", 2],
    ["AllBlocksCleared"],
]
SAME = (
    Stored((7, (1 << 60) - 1), None, array("I", [1, 2, 3, 4]).tobytes(), 2),
    Removed((0x707070707070707,), "CPU", 2),
    Cleared(),
)


def zmq(*events: Any, rank: Any = None) -> KvBatch:
    (batch,) = ZmqEvents().batches(msgspec.msgpack.encode([1.5, list(events), rank]))
    return batch


def one(**more: Any) -> Stored:
    (event,) = zmq({**MAPS[0], **more}).events
    assert isinstance(event, Stored)
    return event


@pytest.mark.parametrize("events", [MAPS, ARRAYS])
@pytest.mark.parametrize("as_map", [False, True])
def test_maps_and_arrays_are_the_same(events: list[Any], as_map: bool) -> None:
    body = {"ts": 1.5, "events": events, "data_parallel_rank": 3} if as_map else [1.5, events, 3]
    assert ZmqEvents().batches(msgspec.msgpack.encode(body)) == (KvBatch(SAME, 3),)


def test_what_is_at_its_default_may_be_left_out() -> None:
    assert ZmqEvents().batches(msgspec.msgpack.encode([1.5, []])) == (KvBatch(()),)
    (removed,) = zmq(["BlockRemoved", [1]]).events
    assert removed == Removed((1,), None, 0)


def test_a_kind_that_is_not_known_is_counted() -> None:
    batch = zmq({"type": "BlockMoved", "to": 1}, MAPS[2], ["Reused", 1], rank=0)
    assert (batch.events, batch.unknown, batch.rank) == ((Cleared(),), 2, 0)


def test_whose_and_where() -> None:
    assert one(lora_name="law", lora_id=3).adapter == "law"
    assert one(lora_id=3).adapter == "#3"
    assert one(medium="STORAGE", ownership="disk").tier == "STORAGE of disk"
    assert (one(group_idx=1).group, one(kv_cache_spec_kind="mla_attention").full) == (1, True)
    assert one(kv_cache_spec_kind="sliding_window").full is False


@pytest.mark.parametrize(
    ("extra", "salted"),
    [
        (None, None),
        ([None, None], None),
        ([["law"], ["law"]], None),
        ([["law", "salt"], None], 0),
        ([None, [["image", 3]]], 1),
        ([["other"]], 0),
    ],
)
def test_what_decides_beside_the_tokens(extra: Any, salted: int | None) -> None:
    assert one(lora_name="law", extra_keys=extra).salted == salted


def test_blocks_that_are_only_moved_have_no_ids() -> None:
    event = one(token_ids=[], block_size=0, medium="CPU")
    assert (event.ids, event.block_tokens, event.tier) == (b"", 0, "CPU")


def test_layers_that_do_not_see_all_may_leave_blocks_out() -> None:
    assert one(token_ids=[1, 2, 3, 4, 5, 6], kv_cache_spec_kind="sliding_window").full is False


@pytest.mark.parametrize(
    "event",
    [
        7,
        [],
        {"block_hashes": []},
        [7],
        {**MAPS[0], "block_hashes": None},
        {**MAPS[0], "block_hashes": [None]},
        {**MAPS[0], "block_hashes": [True]},
        {**MAPS[0], "block_hashes": [b""]},
        {**MAPS[0], "block_hashes": ["no hash"]},
        {**MAPS[0], "parent_block_hash": 1.5},
        {**MAPS[0], "token_ids": [1, 2, 3, -4]},
        {**MAPS[0], "token_ids": [[1, 2], [2, 3], [3, 4], [4, 5]]},
        {**MAPS[0], "token_ids": [1, 2, 3, 1 << 32]},
        {**MAPS[0], "token_ids": [1, 2, 3]},
        {**MAPS[0], "block_size": -2},
        {**MAPS[0], "block_size": None},
        {**MAPS[0], "block_size": True},
        {**MAPS[0], "lora_name": 7},
        {**MAPS[0], "extra_keys": [7]},
        {**MAPS[0], "block_hashes": [1], "token_ids": [1] * 5000, "block_size": 5000},
        {**MAPS[1], "group_idx": "0"},
    ],
)
def test_an_event_that_is_none_is_one_error(event: Any) -> None:
    with pytest.raises(BadEvents):
        zmq(event)


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x01", b"\x93", b"\x90", b"\x81\x90\x01", b"\xdb\xff\xff\xff\xff", b"\x91" * 5000]
)
def test_a_body_that_is_none_is_one_error(body: bytes) -> None:
    with pytest.raises(BadEvents):
        ZmqEvents().batches(body)


def test_a_long_list_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    def counted(events: tuple[KvEvent, ...], *rest: Any) -> KvBatch:
        made.append(len(events))
        return KvBatch(events, *rest)

    monkeypatch.setattr(kv_events, "KvBatch", counted)
    rows = [
        {"event_id": number, "data": {"type": "removed", "block_hashes": [number]}} for number in [*range(500), *range(700, 900)]
    ]
    TrtllmEvents().batches(msgspec.json.encode(rows))
    assert made == [500, 200]


def test_what_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "MAX_MESSAGE_BYTES", 10)
    monkeypatch.setattr(kv_events, "MAX_LIST_BYTES", 10)
    for reader in (ZmqEvents(), TrtllmEvents()):
        with pytest.raises(BadEvents):
            reader.batches(b"[" * 11)


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_one_error(body: bytes) -> None:
    for reader in (ZmqEvents(), TrtllmEvents()):
        with contextlib.suppress(BadEvents):
            assert all(isinstance(each, KvBatch) for each in reader.batches(body))


JUNK: tuple[object, ...] = (
    None,
    True,
    -1,
    1 << 63,
    1.5,
    "",
    "7f",
    "x",
    b"",
    b"ab",
    [],
    [[]],
    [None],
    [-1],
    [1, "a"],
    {},
    {"a": 1},
    [{}],
    [[1]],
)


@given(st.sampled_from(MAPS), st.data())
def test_any_fields_are_events_or_one_error(event: dict[str, Any], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*MAPS[0], "lora_id", "medium", "extra_keys", "group_idx"]), max_size=3))
    with contextlib.suppress(BadEvents):
        zmq({**event, **{name: data.draw(st.sampled_from(JUNK)) for name in names}})


# TensorRT-LLM


def block(name: Any, *ids: int, **more: Any) -> dict[str, Any]:
    tokens = [{"type": "unique_token", "token_id": each, "token_extra_id": 0} for each in ids]
    return {"type": "stored_block", "block_hash": name, "tokens": tokens, "cache_level": 0, "priority": 35, **more}


def trtllm(*data: Any, first: int = 0, reader: TrtllmEvents | None = None, **more: Any) -> list[KvBatch]:
    rows = [{"event_id": first + at, "data": each, "window_size": 64, **more} for at, each in enumerate(data)]
    return list((reader or TrtllmEvents()).batches(json.dumps(rows).encode()))


def stored(*blocks: Any, parent: Any = None) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def event(*told: Any, **more: Any) -> KvEvent:
    (batch,) = trtllm(*told, **more)
    return batch.events[-1]


def test_a_list_has_numbered_events() -> None:
    (batch,) = trtllm(
        {"type": "created", "num_blocks_per_cache_level": [9, 0]},
        stored(block(1 << 63, 5, 6), block("ab", 7), parent=4),
        {"type": "removed", "block_hashes": [3]},
        {"type": "updated", "block_hash": 3, "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1}},
        {"type": "updated", "block_hash": 3, "priority": {"type": "event_diff", "old_value": 0, "new_value": 1}},
        {"type": "new"},
        first=9,
    )
    assert batch == KvBatch(
        (
            Stored((0,), 4, array("I", [5, 6]).tobytes(), 2),
            Stored((0xAB,), 0, array("I", [7]).tobytes(), 1),
            Removed((3,)),
            Stored((3,), None, b"", 0, tier="level 1"),
            Removed((3,), "GPU"),
        ),
        None,
        1,
        9,
        14,
    )


def test_events_that_do_not_follow_each_other_are_batches_of_their_own() -> None:
    rows = [{"event_id": number, "data": {"type": "removed", "block_hashes": [number]}} for number in (4, 5, 8)]
    batches = TrtllmEvents().batches(json.dumps(rows).encode())
    assert [(each.first, each.last, len(each.events)) for each in batches] == [(4, 5, 2), (8, 8, 1)]


def test_ranks_are_told_apart() -> None:
    rows = [{"event_id": 0, "data": {"type": "created"}, "attention_dp_rank": rank} for rank in (0, 1)]
    assert [each.rank for each in TrtllmEvents().batches(json.dumps(rows).encode())] == [0, 1]


def test_a_shorter_window_is_another_group() -> None:
    reader = TrtllmEvents()
    gone = {"type": "removed", "block_hashes": [1]}
    assert event(gone, reader=reader, window_size=128) == Removed((1,))
    assert event(gone, reader=reader, window_size=64) == Removed((1,), group=1)
    assert event(gone, reader=reader, window_size=128) == Removed((1,))


@pytest.mark.parametrize(
    "odd",
    [{"cache_salt": "s"}, {"mm_keys": [{"type": "mm_key", "hash": "ab"}]}, {"tokens": [{"token_id": 1, "token_extra_id": 9}]}],
)
def test_what_decides_beside_the_tokens_there(odd: dict[str, Any]) -> None:
    found = event(stored(block(1, 5, **odd)))
    assert isinstance(found, Stored)
    assert found.salted == 0


def test_an_adapter_there_is_a_number() -> None:
    found = event(stored(block(1, 5, lora_id=4, cache_level=1)))
    assert isinstance(found, Stored)
    assert (found.adapter, found.tier) == ("#4", "level 1")


@pytest.mark.parametrize("data", [None, [], {"type": "stored"}, stored(7), stored(block(1, *[1] * 5000)), stored(block(None, 1))])
def test_a_list_of_what_is_none_is_one_error(data: Any) -> None:
    with pytest.raises(BadEvents):
        trtllm(data)


@pytest.mark.parametrize("kind", known())
def test_a_kind_that_tells_has_a_reader(kind: str) -> None:
    engine = make(kind)
    way = engine.traits.kv_events
    assert (engine.kv_reader() is not None) == (way is not None)
    assert (engine.kv_path is not None) == (way == "poll")


# The real vLLM (tests/data/kv_events)

RECORDED = Path(__file__).parent.parent / "data" / "kv_events" / "vllm.msgpack"
A, SALTED, C = range(100, 300), range(1000, 1200), range(2000, 2330)
CHUNK = 48  # blocks of 32 do not divide it


def recorded(part: str) -> list[list[bytes]]:
    found: dict[str, list[list[bytes]]] = msgspec.msgpack.decode(RECORDED.read_bytes())
    return found[part]


def test_what_the_real_one_published_are_the_keys_of_what_it_was_sent() -> None:
    blocks = Blocks(7, CHUNK)
    after: list[set[int]] = []
    for _, _, payload in recorded("live"):
        (batch,) = ZmqEvents().batches(payload)
        assert (batch.rank, batch.unknown) == (0, 0)
        blocks.apply(batch.events)
        after.append({key for run in blocks.held() for key in run.keys})
    assert (blocks.problem, blocks.strange, blocks.orphans) == (None, 0, 0)
    first, longer = token_chain(A, CHUNK, 7), token_chain([*A, *[7, 8, 9] * 20], CHUNK, 7)
    assert after[0] == set(first)
    assert after[1] == set(longer)
    assert after[2] > after[1]  # a block of the answer
    assert after[3] == after[2]  # salted
    assert after[4] == {*first, *token_chain(C, CHUNK, 7)}  # evicted from the end


def test_what_it_was_asked_for_again_is_the_same() -> None:
    assert [frames[-1] for frames in recorded("replay")[:-1]] == [frames[-1] for frames in recorded("live")]
    assert recorded("replay")[-1][-2:] == [b"\xff" * 8, b""]
