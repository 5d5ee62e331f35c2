"""How quickly a queue moves."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.pace import Pace


@given(st.lists(st.floats(0.001, 100), max_size=80), st.integers(0, 1000), st.floats(0, 1e6))
def test_a_time_to_come_back_is_within_its_bounds(gaps: list[float], ahead: int, later_s: float) -> None:
    pace, now_s = Pace(), 100.0
    pace.waits(now_s)
    for gap in gaps:
        now_s += gap
        pace.left(now_s, waiting=True)
    assert 1.0 <= pace.wait_s(ahead, now_s + later_s) <= 30.0


def test_a_time_to_come_back_follows_the_rate_while_anyone_waits() -> None:
    pace = Pace()
    assert pace.wait_s(100, 0.0) == 1.0  # nothing is known
    for turn in range(20):
        pace.waits(turn * 0.5)
        pace.left(turn * 0.5 + 0.5, waiting=True)
    assert pace.wait_s(9, 10.0) == 5.0
    pace.empty()
    assert pace.wait_s(9, 10_000.0) == 5.0  # an idle night is no slow queue
    pace.waits(10_000.0)
    assert pace.wait_s(9, 10_000.1) == 5.0
    assert pace.wait_s(9, 10_010.0) > 20.0  # but one that does not move is


def departures(pace: Pace, number: int, gap_s: float, from_s: float = 0.0) -> float:
    """So many leave while others wait; when the last did."""
    pace.waits(from_s)
    for turn in range(number):
        pace.left(from_s + (turn + 1) * gap_s, waiting=True)
    return from_s + number * gap_s


def test_a_prediction_needs_eight_departures_while_anyone_waits() -> None:
    pace = Pace()
    assert pace.predicted_s(0, 0.0) is None
    now_s = departures(pace, 7, 10.0)
    assert pace.predicted_s(5, now_s) is None
    pace.left(now_s + 10.0, waiting=True)
    assert pace.predicted_s(5, now_s + 10.0) == 60.0  # no bound, as a time to come back at has
    assert pace.predicted_s(0.5, now_s + 10.0) == 15.0


def test_a_prediction_is_of_those_that_wait_now_and_not_of_those_before() -> None:
    pace = Pace()
    now_s = departures(pace, 20, 0.5)
    pace.left(now_s + 0.5, waiting=False)
    assert pace.predicted_s(0, now_s + 1.0) is None
    now_s = departures(pace, 7, 0.5, now_s + 100.0)
    assert pace.predicted_s(0, now_s) is None
    pace.left(now_s + 0.5, waiting=True)
    assert pace.predicted_s(9, now_s + 0.5) == 5.0
    pace.empty()
    assert pace.predicted_s(9, now_s + 0.6) is None


def test_a_queue_that_stands_still_is_predicted_to_be_slower() -> None:
    pace = Pace()
    now_s = departures(pace, 10, 0.5)
    assert pace.predicted_s(9, now_s + 0.4) == 5.0
    before_s = 5.0
    for later_s in (1.0, 5.0, 60.0):
        predicted_s = pace.predicted_s(9, now_s + later_s)
        assert predicted_s is not None
        assert predicted_s > before_s
        before_s = predicted_s


def test_one_that_leaves_a_queue_in_which_nobody_waited_says_nothing_of_its_pace() -> None:
    pace = Pace()
    pace.left(50.0, waiting=True)
    assert (pace.wait_s(10, 50.0), pace.predicted_s(10, 50.0)) == (1.0, None)
