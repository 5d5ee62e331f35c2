"""The W3C trace context: what is read, what is ignored as the standard says, and that whatever is read can be sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.trace_context import MAX_STATE_CHARS, TraceContext, read

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def of(*parents: str, state: tuple[str, ...] = ()) -> TraceContext | None:
    headers = [(b"host", b"x"), *((b"traceparent", each.encode("latin-1")) for each in parents)]
    return read([*headers, *((b"tracestate", each.encode("latin-1")) for each in state)])


@pytest.mark.parametrize(
    ("parent", "flags"),
    [
        (GOOD, 1),
        (f" {GOOD}\t", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 255),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-later-versions-have", 1),
    ],
)
def test_a_valid_parent(parent: str, flags: int) -> None:
    found = of(parent)
    assert found == TraceContext(TRACE, SPAN, flags)
    assert found.sampled == bool(flags & 1)
    assert found.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-{flags & 3:02x}"}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        f"{GOOD}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"cc-{TRACE}-{SPAN}-01.",
        f"cc-{TRACE}-{SPAN}-01-\x01",
        f"{GOOD}, {GOOD}",
        f"00_{TRACE}-{SPAN}-01",
        f"{GOOD}\n",
        "\u00bd" * 55,
    ],
)
def test_a_bad_parent_is_none(parent: str) -> None:
    assert of(parent) is None


def test_two_parents_are_none_and_a_state_alone_is_none() -> None:
    assert of(GOOD, GOOD) is None
    assert of(state=("a=1",)) is None


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (("a=1",), "a=1"),
        (("a=1, b=2",), "a=1,b=2"),
        (("a=1", "b=2\t"), "a=1,b=2"),
        (("a=1,,b=2", " "), "a=1,b=2"),
        (("0tenant@vendor=x y",), "0tenant@vendor=x y"),
        (("a/b*c-d_e=1",), "a/b*c-d_e=1"),
        ((",".join(f"k{each}=v" for each in range(32)),), ",".join(f"k{each}=v" for each in range(32))),
        ((",".join(f"k{each}=v" for each in range(33)),), ""),
        (("a=1,a=2",), ""),
        (("A=1",), ""),
        (("a",), ""),
        (("a=",), ""),
        (("a=b=c",), ""),
        (("a=\u00e9",), ""),
        (("a=\x7f",), ""),
        (("a@b@c=1",), ""),
        ((f"a={'x' * 257}",), ""),
        (("x" * 9000,), ""),
    ],
)
def test_a_state_that_is_not_valid_is_left_out_alone(state: tuple[str, ...], told: str) -> None:
    found = of(GOOD, state=state)
    assert found is not None
    assert found.state == told
    assert ("tracestate" in found.headers()) == bool(told)


def test_of_a_long_state_the_last_members_are_left_out() -> None:
    members = [f"k{each}={'v' * 96}" for each in range(9)]
    found = of(GOOD, state=(",".join(members),))
    assert found is not None
    assert found.state == ",".join(members[:5])
    whole = "a=" + "v" * 250 + ",b=" + "v" * 250 + ",c=12345"
    assert len(whole) == MAX_STATE_CHARS + 1
    found = of(GOOD, state=(whole,))
    assert found is not None
    assert found.state == whole.rpartition(",")[0]


@given(st.binary(max_size=80) | st.just(GOOD.encode()), st.lists(st.binary(max_size=600), max_size=3))
def test_whatever_comes_is_none_or_can_be_read_again(parent: bytes, states: list[bytes]) -> None:
    found = read([(b"traceparent", parent), *((b"tracestate", each) for each in states)])
    if found is not None:
        again = read([(name.encode(), value.encode("ascii")) for name, value in found.headers().items()])
        assert again == TraceContext(found.trace_id, found.span_id, found.flags & 3, found.state)
