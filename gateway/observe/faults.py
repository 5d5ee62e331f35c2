"""The last faults in models' output, with what was written there, for the operator's own page.

Invariant: as many as are kept, each with little text, no secret in it. Secrets go before text is cut, so that none is half shown.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.events import Event, Generated
from gateway.observe.redact import Redactor
from gateway.request import FailureKind, Fault

KEPT_FAULTS = 50
SHOWN_CHARS = 200
_BEFORE_CHARS = 100  # of them before the fault's place
_BREAK = re.compile(r"""[^!-~]|["',;&<>]""")  # what no key has


@dataclass(frozen=True, slots=True)
class FaultStory:
    """One fault. `at_s` is Unix time, `offset` its place in the model's output, in code points; None: it has none. `before` and
    `after` are the raw text on both sides of it, None where none is shown."""

    at_s: float
    request_id: str
    model: str
    engine: str
    format: str
    kind: FailureKind
    offset: int | None
    recovered: bool
    before: str | None
    after: str | None


class LastFaults:
    """An observer. `shows`: the text too. `wall_clock_s` gives Unix time."""

    hears = (Generated,)

    def __init__(self, redactor: Redactor, wall_clock_s: Callable[[], float], *, shows: bool) -> None:
        self._redactor = redactor
        self._wall_clock_s = wall_clock_s
        self.shows = shows
        self._kept: deque[FaultStory] = deque(maxlen=KEPT_FAULTS)

    def __call__(self, event: Event) -> None:
        """Takes the faults of an attempt that is over."""
        if not isinstance(event, Generated):
            return
        for fault in event.made.faults:
            before, after = excerpt(fault, self._redactor) if self.shows else (None, None)
            about = (event.request_id, event.model, event.engine, event.format)
            self._kept.append(FaultStory(self._wall_clock_s(), *about, fault.kind, fault.offset, fault.recovered, before, after))

    def last(self) -> Sequence[FaultStory]:
        """The newest first."""
        return tuple(reversed(self._kept))


def excerpt(fault: Fault, redactor: Redactor) -> tuple[str, str]:
    """The text on both sides of a fault's place, without secrets. A word that was cut is left out: it may be a part of one."""
    text, at = fault.text, fault.at
    if fault.cut:
        first = _BREAK.search(text)
        begins = first.end() if first is not None else len(text)
        text, at = text[begins:], max(0, at - begins)
    place = len(redactor.unfinished(text[:at]))
    clean = redactor.unfinished(text)
    place = min(place, len(clean))
    begins = max(0, place - _BEFORE_CHARS)
    return clean[begins:place], clean[place : begins + SHOWN_CHARS]
