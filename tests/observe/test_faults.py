"""The last faults of models' output: as many as are kept, with little text and no secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.events import MADE

from gateway.events import FirstToken, Generated
from gateway.made import Made
from gateway.observe.faults import KEPT_FAULTS, SHOWN_CHARS, LastFaults, excerpt
from gateway.observe.redact import Redactor
from gateway.request import Fault

SECRET = "canary/engine-key+8f3a"


def fault(text: str, at: int, *, cut: bool = False) -> Fault:
    return Fault("invalid_json", 7, False, text, at, cut)


def done(number: int, *faults: Fault) -> Generated:
    return replace(MADE, request_id=f"r{number}", made=Made(faults=faults))


def test_the_newest_are_kept() -> None:
    last = LastFaults(Redactor(), lambda: 12.5, shows=True)
    last(FirstToken("r", 1, "a", "m", 0.1))
    for number in range(KEPT_FAULTS + 10):
        last(done(number, fault("{bad", 1)))
    kept = last.last()
    assert len(kept) == KEPT_FAULTS
    assert [each.request_id for each in kept[:2]] == ["r59", "r58"]
    first = kept[0]
    assert (first.at_s, first.model, first.engine, first.format, first.kind, first.offset) == (
        12.5,
        "m",
        "a",
        "hermes",
        "invalid_json",
        7,
    )
    assert (first.before, first.after, first.recovered) == ("{", "bad", False)


def test_where_none_is_shown_none_is_kept() -> None:
    last = LastFaults(Redactor(), lambda: 0.0, shows=False)
    last(done(1, fault("{bad", 1)))
    (kept,) = last.last()
    assert (kept.before, kept.after, kept.kind) == (None, None, "invalid_json")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (f"the key is {SECRET}, {{bad", 40),
        (f"the key is {SECRET}", 20),  # the fault's place is amid it
        (f"{SECRET}", 0),
        (f"x {SECRET[:12]}", 1),  # it goes on
        ("authorization: Bearer abcdef123456 {bad", 30),
        ("sk-abcdefgh12345678", 5),
    ],
)
def test_no_secret_is_shown(text: str, at: int) -> None:
    shown = "".join(excerpt(fault(text, min(at, len(text))), Redactor([SECRET])))
    assert "[redacted]" in shown
    for secret in (SECRET[:12], "abcdef12", "abcdefgh"):
        assert secret not in shown


def test_the_rest_of_a_secret_that_was_cut_is_not_shown() -> None:
    assert excerpt(fault(f'{SECRET[5:]}" and {{bad', 25, cut=True), Redactor([SECRET])) == (" and {b", "ad")
    assert excerpt(fault(SECRET[5:], 9, cut=True), Redactor([SECRET])) == ("", "")
    assert excerpt(fault("字" * 900 + "{bad", 901, cut=True), Redactor([SECRET]))[1] == "bad"


@given(st.text(max_size=300), st.integers(0, 300), st.text(max_size=300), st.booleans())
def test_a_known_secret_is_never_shown_whole_nor_much_text(left: str, at: int, right: str, cut: bool) -> None:
    text = f"{left}{SECRET}{right}"
    before, after = excerpt(fault(text, min(at, len(text)), cut=cut), Redactor([SECRET]))
    assert SECRET not in before + after
    assert len(before + after) <= SHOWN_CHARS
