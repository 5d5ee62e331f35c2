"""The in-flight counts return to zero, whatever happens to the events on their way."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events import AttemptFailed, AttemptServed, AttemptStarted, ClientGone, Event, Finished, FirstToken, Received
from gateway.routing.inflight import InFlight

PLACES = [("m", "a"), ("m", "b"), ("other", "a")]


def started(request: str, attempt: int = 1, place: tuple[str, str] = ("m", "a")) -> AttemptStarted:
    return AttemptStarted(request, attempt, engine=place[1], model=place[0], at_s=0.0)


def finished(request: str, place: tuple[str, str] = ("m", "a")) -> Finished:
    return Finished(request, "openai_chat", place[0], place[1], "plain", "ok", None, 200, True, 1, duration_s=1.0)


@dataclass(frozen=True)
class Life:
    """One request's events in their order, and what ran at the most."""

    events: list[Event]


@st.composite
def lives(draw: st.DrawFn, request: str) -> Life:
    """A request with retries, each try with one attempt a choice; any of them may fail, or the client leaves."""
    events: list[Event] = [Received(request, "openai_chat", 0.0)]
    attempt = 0
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(PLACES))
        choices = range(attempt + 1, attempt + 1 + draw(st.integers(1, 4)))
        attempt = choices[-1]
        events += [started(request, number, place) for number in choices]
        if draw(st.booleans()):
            events.append(FirstToken(request, choices[0], place[1], place[0], 0.1))
        ends = draw(
            st.lists(st.sampled_from(["fails", "gone", "serves", "one of many"]), min_size=len(choices), max_size=len(choices))
        )
        for number, end in zip(choices, ends, strict=True):
            if end == "fails":
                events.append(AttemptFailed(request, number, place[1], "broke"))
            elif end == "one of many":
                events.append(AttemptServed(request, number, place[1], place[0]))
            elif end == "gone":
                events.append(ClientGone(request, number, place[1]))
    events.append(finished(request))
    return Life(events)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Several requests, with events repeated and in any order."""
    events: list[Event] = []
    for number in range(draw(st.integers(1, 5))):
        life = draw(lives(f"r{number}"))
        events += life.events + draw(st.lists(st.sampled_from(life.events), max_size=5))
    return draw(st.permutations(events))


def open_now(events: list[Event]) -> Counter[tuple[str, str]]:
    """The same count by brute force: an attempt runs where it started and nothing closed it."""
    running: dict[tuple[str, int], tuple[str, str]] = {}
    closed: set[tuple[str, int]] = set()
    over: set[str] = set()
    for event in events:
        match event:
            case AttemptStarted():
                running.setdefault((event.request_id, event.attempt), (event.model, event.engine))
            case AttemptFailed() | AttemptServed() | ClientGone():
                closed.add((event.request_id, event.attempt))
            case Finished():
                over.add(event.request_id)
            case _:
                pass
    return Counter(place for key, place in running.items() if key not in closed and key[0] not in over)


@settings(max_examples=200, deadline=None)
@given(streams())
def test_counts_equal_a_brute_force_count_at_every_step_and_end_at_zero(events: list[Event]) -> None:
    inflight = InFlight()
    for step, event in enumerate(events, 1):
        inflight.apply(event)
        expected = open_now(events[:step])
        assert dict(inflight.counts) == dict(expected)
        assert all(inflight.count(*place) == expected[place] for place in PLACES)
    assert not inflight.counts


def test_a_retry_moves_the_count_to_the_other_engine() -> None:
    inflight = InFlight()
    inflight.apply(started("r", 1))
    inflight.apply(AttemptFailed("r", 1, "a", "broke"))
    inflight.apply(started("r", 2, ("m", "b")))
    assert (inflight.count("m", "a"), inflight.count("m", "b")) == (0, 1)


def test_what_runs_on_an_engine_that_had_the_name_before_does_not_count_against_the_new_one() -> None:
    inflight = InFlight()
    for request in ("old", "older"):
        inflight.apply(started(request))
    inflight.moved("m", "a")
    assert (inflight.count("m", "a"), dict(inflight.counts)) == (0, {("m", "a"): 2})
    inflight.apply(started("new"))
    assert (inflight.count("m", "a"), dict(inflight.counts)) == (1, {("m", "a"): 3})
    inflight.apply(finished("old"))
    assert (inflight.count("m", "a"), dict(inflight.counts)) == (1, {("m", "a"): 2})
    inflight.moved("m", "a")
    inflight.apply(started("newest"))
    assert (inflight.count("m", "a"), dict(inflight.counts)) == (1, {("m", "a"): 3})
    for request in ("new", "older", "newest"):
        inflight.apply(finished(request))
    inflight.moved("m", "a")
    inflight.apply(started("after"))
    assert (inflight.count("m", "a"), dict(inflight.counts)) == (1, {("m", "a"): 1})


def test_every_choice_of_a_request_counts() -> None:
    inflight = InFlight()
    for attempt in (1, 2, 3):
        inflight.apply(started("r", attempt))
    inflight.apply(ClientGone("r", 2, "a"))
    assert inflight.count("m", "a") == 2
    inflight.apply(finished("r"))
    assert inflight.count("m", "a") == 0


def test_the_memory_of_finished_requests_is_bounded() -> None:
    inflight = InFlight(remembered=2)
    for number in range(3):
        inflight.apply(finished(f"r{number}"))
    inflight.apply(started("r1"))
    assert not inflight.counts
    inflight.apply(started("r0"))  # forgotten: it counts as a new request, and closes as one
    assert inflight.count("m", "a") == 1
    inflight.apply(finished("r0"))
    assert not inflight.counts
