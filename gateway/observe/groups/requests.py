"""Requests that ended: how many, how, and after how long."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import get_args

from gateway.errors import RejectReason, TimeoutStage
from gateway.events import NO_ENGINE, NO_MODEL, Finished, Outcome
from gateway.observe.bounds import DURATION_S
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter, Histogram, Labels, Names
from gateway.request import FailureKind

_UNREAD: Mapping[Outcome, Sequence[str]] = {
    "client_error": (
        "bad_request",
        "model_not_found",
        "method_not_allowed",
        "body_too_large",
        "unsupported_encoding",
        "body_timeout",
    ),
    "rejected": ("overloaded",),
    "upstream_error": ("internal",),
    "client_gone": ("body",),
    "drained": ("draining",),
}
"""Why requests fail before it is known which model they are for."""
_READ: Mapping[Outcome, Sequence[str]] = {
    "client_error": ("bad_request", "context_length_exceeded", "client_stalled", "refused"),
    "rejected": (*get_args(RejectReason), "model_not_served"),
    "upstream_error": ("unreachable", "refused", "broke", "differs", "poison", *get_args(FailureKind)),
    "timeout": get_args(TimeoutStage),
    "client_gone": ("waiting", "streaming"),
    "drained": ("draining",),
}
"""Why they fail from then on."""
_WORDS = frozenset(reason for each in (_UNREAD, _READ) for reasons in each.values() for reason in reasons)
_UNSERVED = tuple(outcome for outcome in get_args(Outcome) if outcome != "ok")


class Requests(Group):
    """Requests by outcome, the one word that the log and the trace have too."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._reason = Names(_WORDS)
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
        self._failures.start(_failures(NO_MODEL, _UNREAD))
        self._ended.start(self._unserved(NO_MODEL))

    def starts_with(self, served: Served) -> Starts:
        """What becomes of requests that no engine is asked for, and every reason."""
        yield self._ended, list(self._unserved(served.model))
        yield self._failures, list(_failures(served.model, _READ))

    def starts(self, served: Served, engine: str) -> Starts:
        """Every outcome in every dialect."""
        ends = product(self._known.dialects, get_args(Outcome))
        yield self._ended, [(served.model, engine, *end) for end in ends]

    def _unserved(self, model: str) -> Iterator[Labels]:
        return ((model, NO_ENGINE, *end) for end in product(self._known.dialects, _UNSERVED))

    def _finished(self, pair: Pair, event: Finished) -> None:
        self._ended.add((*pair, self._known.dialect(event.dialect), event.outcome))
        if event.outcome != "ok":
            self._failures.add((pair[0], event.outcome, self._reason(event.reason or "unknown")))
        if pair[0] != NO_MODEL:
            self._duration.add(pair, event.duration_s, event.recorded)


def _failures(model: str, words: Mapping[Outcome, Sequence[str]]) -> Iterator[Labels]:
    return ((model, outcome, reason) for outcome, reasons in words.items() for reason in reasons)


GROUP = Requests
