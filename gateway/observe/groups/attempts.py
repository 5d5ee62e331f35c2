"""What engines were asked, and what became of that where another served."""

from typing import get_args

from gateway.events import AttemptFailed, AttemptStarted, NotRetried
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter, Names
from gateway.routing.retry import EXCUSED, Stopped

_ENGINE_FAILURES = ("unreachable", "refused", "broke", "connect", "headers", "first_token", "between_tokens", "internal")
_REASONS = (*_ENGINE_FAILURES, *EXCUSED)


class Attempts(Group):
    """Failures that clients never saw are here too."""

    def __init__(self, _: Known) -> None:
        self._reason = Names(_REASONS)
        self._stopped = Names(get_args(Stopped))
        self._started = Counter("interlock_attempts_total", "Times that an engine was asked for an answer.", PAIR)
        self._failures = Counter(
            "interlock_attempt_failures_total",
            "Attempts that ended without an answer that was given, by reason, also where another served. Nothing against the"
            f" engine say {', '.join(EXCUSED[:-1])} and {EXCUSED[-1]}.",
            (*PAIR, "reason"),
        )
        self._retries = Counter("interlock_retries_total", "Attempts that followed a failure.", ("model",))
        self._resumes = Counter("interlock_resumes_total", "Retries that went on with a broken answer.", ("model",))
        self._refused = Counter(
            "interlock_retries_refused_total", "Failures that no attempt followed, by what forbade it.", ("model", "reason")
        )
        super().__init__(
            "Attempts",
            (self._started, self._failures, self._retries, self._resumes, self._refused),
            {AttemptStarted: self._attempted, AttemptFailed: self._failed, NotRetried: self._ended},
        )

    def starts_with(self, served: Served) -> Starts:
        """Retries are a model's."""
        yield self._retries, [(served.model,)]
        yield self._resumes, [(served.model,)]
        yield self._refused, [(served.model, why) for why in get_args(Stopped)]

    def starts(self, served: Served, engine: str) -> Starts:
        """Every reason."""
        yield self._started, [(served.model, engine)]
        yield self._failures, [(served.model, engine, reason) for reason in _REASONS]

    def _attempted(self, pair: Pair, event: AttemptStarted) -> None:
        self._started.add(pair)
        if event.retry:
            self._retries.add(pair[:1])
            self._resumes.add(pair[:1], event.why == "resume")

    def _failed(self, pair: Pair, event: AttemptFailed) -> None:
        self._failures.add((*pair, self._reason(event.reason)))

    def _ended(self, pair: Pair, event: NotRetried) -> None:
        self._refused.add((pair[0], self._stopped(event.why)))


GROUP = Attempts
