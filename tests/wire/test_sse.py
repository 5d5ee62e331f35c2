import re
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.sse import SseError, SseEvent, SseReader

LINE_ENDS = [b"\n", b"\r\n", b"\r"]
PIECES = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b": ",
    b" ",
    b"x",
    b"data: ",
    b'{"a":1}',
    b"\xef\xbb\xbf",
    b"\xff",
    b"\x00",
    "é".encode(),
]
streams = st.lists(st.sampled_from(PIECES + LINE_ENDS * 4), max_size=60).map(b"".join)


def reference(stream: bytes) -> list[SseEvent]:
    """The standard's own algorithm, line by line over the whole stream."""
    events: list[SseEvent] = []
    data, name = b"", b""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:  # what follows the last line end is no line yet
        if line == b"":
            if data:
                events.append(SseEvent(data[:-1], name))
            data, name = b"", b""
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data += value + b"\n"
        elif field == b"event":
            name = value
    return events


def read(pieces: Sequence[bytes], max_event_bytes: int = 1000) -> list[SseEvent]:
    reader = SseReader(max_event_bytes)
    return [event for piece in pieces for event in reader.feed(piece)]


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    bounds = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [SseEvent(b"a")]),
        (b"data:a\n\n", [SseEvent(b"a")]),
        (b"data:  a\n\n", [SseEvent(b" a")]),
        (b"data: a\ndata: b\n\n", [SseEvent(b"a\nb")]),
        (b"data\n\n", [SseEvent(b"")]),
        (b"data:\ndata:\n\n", [SseEvent(b"\n")]),
        (b"event: delta\ndata: a\n\n", [SseEvent(b"a", b"delta")]),
        (b"event: delta\n\ndata: a\n\n", [SseEvent(b"a")]),
        (b": ping\n\ndata: a\n\n", [SseEvent(b"a")]),
        (b"id: 7\nretry: 10\ndata: a\n\n", [SseEvent(b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")]),
        (b"\xef\xbbdata: a\n\n", []),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [SseEvent(b"a"), SseEvent(b"b"), SseEvent(b"c")]),
        (b"data: never ended\n", []),
        (b"\n\n\n\ndata: a\n\n\n\n", [SseEvent(b"a")]),
    ],
)
def test_known_streams(stream: bytes, events: list[SseEvent]) -> None:
    assert read([stream]) == events
    assert read([bytes([byte]) for byte in stream]) == events
    assert reference(stream) == events


@settings(max_examples=200, deadline=None)
@given(streams, st.lists(st.integers(min_value=0), max_size=8))
def test_any_split_gives_what_the_standard_says(stream: bytes, places: list[int]) -> None:
    expected = reference(stream)
    assert read([stream]) == expected
    assert read([bytes([byte]) for byte in stream]) == expected
    assert read(cut(stream, places)) == expected


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=8))
def test_any_bytes_are_read(stream: bytes, places: list[int]) -> None:
    assert read(cut(stream, places)) == reference(stream)


def outcome(pieces: Sequence[bytes], max_event_bytes: int) -> list[SseEvent] | None:
    try:
        return read(pieces, max_event_bytes)
    except SseError:
        return None


@settings(max_examples=200, deadline=None)
@given(streams, st.lists(st.integers(min_value=0), max_size=8), st.integers(1, 20))
def test_the_limit_does_not_depend_on_the_split(stream: bytes, places: list[int], limit: int) -> None:
    whole = outcome([stream], limit)
    assert outcome([bytes([byte]) for byte in stream], limit) == whole
    assert outcome(cut(stream, places), limit) == whole


@pytest.mark.parametrize("size", [1, 10])
def test_an_event_may_be_as_long_as_the_limit(size: int) -> None:
    stream = b"data: " + b"x" * 94 + b"\n\n"
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert read(pieces, max_event_bytes=100) == [SseEvent(b"x" * 94)]
    with pytest.raises(SseError, match="over 99 bytes"):
        read(pieces, max_event_bytes=99)


@pytest.mark.parametrize("endless", [b"x", b"data: x\n", b": ping\n"])
def test_an_event_without_end_is_not_kept(endless: bytes) -> None:
    with pytest.raises(SseError, match="over 1000 bytes"):
        read([endless] * 2000, max_event_bytes=1000)


def cpu_s(kilobytes: int) -> float:
    stream = b"data: " + b"x" * kilobytes * 1024 + b"\n\n"
    reader = SseReader()
    began_s = time.process_time()
    events = [event for i in range(len(stream)) for event in reader.feed(stream[i : i + 1])]
    spent_s = time.process_time() - began_s
    assert len(events[0].data) == kilobytes * 1024
    return spent_s


def test_one_byte_at_a_time_costs_linear_time() -> None:
    ratios = [cpu_s(256) / cpu_s(32) for _ in range(3)]
    assert min(ratios) < 16, "8 times the bytes; quadratic cost would be 64 times"
