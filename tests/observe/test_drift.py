"""When an engine's cache is as it was believed, and when the alarm begins and ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.drift import Drift, Result, Turn

UNIT = 128.0
PROMPT = 10_000


def turns(drift: Drift, predicted: int, reported: int | None, times: int) -> list[Turn | None]:
    """What each of so many equal attempts does to the alarm."""
    found = [drift.take(PROMPT, predicted, reported, UNIT) for _ in range(times)]
    return [each.turn if each is not None else None for each in found]


@pytest.mark.parametrize(
    ("prompt", "predicted", "reported", "result", "error"),
    [
        (10_000, 5_000, 5_000, "right", 0.0),
        (10_000, 5_000, 4_500, "right", 0.05),
        (10_000, 5_000, 5_500, "right", 0.05),
        (10_000, 5_000, 4_499, "over", 0.0501),
        (10_000, 5_000, 5_501, "under", 0.0501),
        (200, 128, 1, "right", 0.635),  # within a chunk
        (200, 129, 0, "over", 0.645),
        (10_000, 0, 600, "under", 0.06),
        (10_000, 0, -5, "right", 0.0),  # an engine may say anything
        (0, 0, 3, "right", 3.0),
    ],
)
def test_one_attempt_is_compared(prompt: int, predicted: int, reported: int, result: Result, error: float) -> None:
    drift = Drift()
    drift.told = True
    compared = drift.take(prompt, predicted, reported, UNIT)
    assert compared is not None
    assert (compared.result, compared.predicted, compared.reported) == (result, predicted, max(0, reported))
    assert compared.error == pytest.approx(error)
    assert {"right": drift.right, "over": drift.over, "under": drift.under} == {
        **dict.fromkeys(("right", "over", "under"), 0),
        result: 1,
    }


def test_an_engine_that_never_tells_is_never_wrong() -> None:
    drift = Drift()
    assert turns(drift, 9_000, None, 200) == [None] * 200
    assert (drift.state, drift.alarm, drift.right + drift.over + drift.under, drift.predicted) == ("not_told", False, 0, 0.0)


@pytest.mark.parametrize("reported", [0, -7])
def test_one_that_never_had_anything_and_says_so_is_an_alarm(reported: int) -> None:
    drift = Drift()
    assert turns(drift, 9_000, reported, 20).count("began") == 1
    assert (drift.state, drift.over) == ("drifts", 20)


@pytest.mark.parametrize("reported", [None, 0])
def test_one_that_told_once_and_has_nothing_ever_since_is_an_alarm(reported: int | None) -> None:
    """None is what an engine says that leaves zeros out."""
    drift = Drift()
    drift.take(PROMPT, 9_000, 9_000, UNIT)
    assert drift.state == "too_few"
    assert turns(drift, 9_000, reported, 8) == [None] * 8
    assert turns(drift, 9_000, reported, 1) == ["began"]  # the tenth of all
    assert turns(drift, 9_000, reported, 300) == [None] * 300
    assert (drift.state, drift.alarm, drift.over) == ("drifts", True, 309)
    assert drift.reported < 0.01 * drift.predicted


def test_the_alarm_begins_beyond_a_quarter_and_not_at_less() -> None:
    for reported, alarm in ((6_800, False), (6_700, True)):
        drift = Drift()
        turns(drift, 9_000, reported, 500)
        assert (drift.alarm, drift.state) == (alarm, "drifts" if alarm else "as_predicted")


def test_it_ends_once_and_only_where_little_is_lacking() -> None:
    drift = Drift()
    assert turns(drift, 9_000, 100, 10)[-1] == "began"
    assert turns(drift, 9_000, 7_400, 500) == [None] * 500  # 18 % lack: it would not have begun
    assert drift.alarm
    found = turns(drift, 9_000, 9_000, 100)
    assert [each for each in found if each] == ["ended"]
    assert drift.state == "as_predicted"


def test_a_good_past_outweighs_a_restart() -> None:
    drift = Drift()
    turns(drift, 9_000, 9_000, 50)
    assert turns(drift, 9_000, 0, 3) == [None] * 3
    assert drift.state == "as_predicted"


def test_after_a_good_past_it_takes_a_dozen_to_be_an_alarm() -> None:
    drift = Drift()
    turns(drift, 9_000, 9_000, 200)
    found = turns(drift, 9_000, 0, 50)
    assert 10 <= found.index("began") <= 20


def test_attempts_of_which_nothing_was_believed_say_nothing_of_the_belief() -> None:
    drift = Drift()
    assert turns(drift, 0, 5_000, 300) == [None] * 300
    assert (drift.state, drift.under) == ("too_few", 300)
    turns(drift, 9_000, 0, 9)
    assert not drift.alarm
    assert turns(drift, 9_000, 0, 1) == ["began"]


def test_what_a_chunk_makes_of_short_prompts_is_no_alarm() -> None:
    drift = Drift()
    for _ in range(200):
        drift.take(200, 128, 64, UNIT)  # half of what was believed, and as near as a chunk can tell
    assert (drift.right, drift.alarm) == (200, False)


def test_what_there_was_too_much_of_makes_up_for_what_lacked() -> None:
    drift = Drift()
    for _ in range(100):
        drift.take(PROMPT, 9_000, 6_000, UNIT)
        drift.take(PROMPT, 3_000, 6_000, UNIT)
    assert (drift.over, drift.under, drift.alarm) == (100, 100, False)


counts = st.integers(0, 200_000)


@given(st.lists(st.tuples(counts, counts, st.none() | st.integers(-10, 200_000)), max_size=120))
def test_whatever_comes_the_alarm_begins_and_ends_in_turn(attempts: list[tuple[int, int, int | None]]) -> None:
    drift, was = Drift(), False
    for prompt, predicted, reported in attempts:
        compared = drift.take(prompt, predicted, reported, UNIT)
        if compared is None:
            assert not drift.told
            continue
        assert compared.turn == (None if drift.alarm == was else "began" if drift.alarm else "ended")
        was = drift.alarm
        assert 0 <= drift.predicted <= 50 * 200_000 + 1
    assert drift.right + drift.over + drift.under <= len(attempts)
