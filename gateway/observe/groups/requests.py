"""Requests that ended: how many, how, and after how long."""

from itertools import product
from typing import get_args

from gateway.events import NO_MODEL, Finished, Outcome
from gateway.observe.bounds import DURATION_S
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter, Histogram, Names

_REASONS = 64


class Requests(Group):
    """Requests by outcome, the one word that the log and the trace have too."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._reason = Names([], room=_REASONS)
        self._ended = Counter("interlock_requests_total", "Requests that ended, by outcome.", (*PAIR, "dialect", "outcome"))
        self._failures = Counter(
            "interlock_request_failures_total",
            "Requests that did not end ok, by reason: the error's word.",
            ("model", "outcome", "reason"),
        )
        self._duration = Histogram(
            "interlock_request_duration_seconds",
            "From the body's last byte to the end of the answer, of requests for a model that is served.",
            PAIR,
            DURATION_S,
        )
        super().__init__("Requests", (self._ended, self._failures, self._duration), {Finished: self._finished})

    def starts(self, served: Served, engine: str) -> Starts:
        """Every outcome in every dialect."""
        ends = product(self._known.dialects, get_args(Outcome))
        yield self._ended, [(served.model, engine, *end) for end in ends]

    def _finished(self, pair: Pair, event: Finished) -> None:
        self._ended.add((*pair, self._known.dialect(event.dialect), event.outcome))
        if event.outcome != "ok":
            self._failures.add((pair[0], event.outcome, self._reason(event.reason or "unknown")))
        if pair[0] != NO_MODEL:
            self._duration.add(pair, event.duration_s, event.recorded)


GROUP = Requests
