"""The bus: order, and observers that fail."""

from collections.abc import Sequence
from timeit import repeat

from structlog.testing import capture_logs

from gateway.events import AttemptServed, ClientGone, Event, Received
from gateway.observe.bus import Bus, Observer

EVENT = Received("r1", "openai_chat", 1.0)


class Broken:
    def __call__(self, event: Event) -> None:
        raise ZeroDivisionError("boom")


def broken_function(event: Event) -> None:
    raise KeyError(event.request_id)


def test_each_observer_gets_each_event_in_order() -> None:
    seen: list[tuple[str, Event]] = []
    observers: Sequence[Observer] = [lambda event: seen.append(("a", event)), lambda event: seen.append(("b", event))]
    Bus(observers).emit(EVENT)
    assert seen == [("a", EVENT), ("b", EVENT)]


class OfAttempts:
    hears = (AttemptServed, ClientGone)

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.heard.append(event)


def test_an_observer_gets_the_kinds_of_events_alone_that_it_hears() -> None:
    some, every = OfAttempts(), list[Event]()
    bus = Bus([some, every.append])
    events: list[Event] = [EVENT, AttemptServed("r1", 1, "e", "m"), ClientGone("r1", 2, "e")]
    for event in events:
        bus.emit(event)
    assert (some.heard, every) == (events[1:], events)


def test_a_failing_observer_harms_no_other_and_is_logged_once_and_counted() -> None:
    seen: list[Event] = []
    bus = Bus([Broken(), broken_function, seen.append])
    with capture_logs() as logs:
        for _ in range(3):
            bus.emit(EVENT)
    assert seen == [EVENT] * 3
    assert dict(bus.failures) == {"Broken": 3, "broken_function": 3}
    assert [(entry["observer"], type(entry["exc_info"])) for entry in logs] == [
        ("Broken", ZeroDivisionError),
        ("broken_function", KeyError),
    ]


def test_it_is_near_free_without_observers() -> None:
    bus = Bus()
    best_s = min(repeat(lambda: bus.emit(EVENT), number=10_000, repeat=5)) / 10_000
    assert best_s < 5e-6
