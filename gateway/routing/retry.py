"""What a failed attempt allows: another engine, or nothing.

Before its first byte an answer may be begun anew on another engine; after it, only gone on with exactly (`resume`). A request
that took down two engines is not given to a third, for whichever of its answers.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from gateway.errors import (
    AnswerRefused,
    BadRequest,
    ContextTooLong,
    EngineBroke,
    EngineDiffers,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    GatewayError,
)

Blame = Literal["engine", "unreached", "busy", "none"]
"""Whom a failure speaks against: the engine, the way to it, nobody as it had no room, or nobody at all."""

Stopped = Literal["final", "attempts", "poison", "no_retry", "saturated", "budget", "no_engine", "resume_refused"]
"""Why there is no further attempt: the failure is not the engine's, or which limit was met."""

EXCUSED = ("answer_refused", "bad_request", "cancelled", "client_stalled", "differs", "schema_miss", "total")
"""Why attempts fail that say nothing of the engine."""

DEADLY_S = 1.0
MOST_DEADLY = 2
_TRY_ELSEWHERE = frozenset({408, 421, 429})


def blame(error: GatewayError) -> Blame:
    """What a failure says of the engine."""
    if isinstance(error, EngineUnreachable) or (isinstance(error, EngineTimeout) and error.stage == "connect"):
        return "unreached"
    if isinstance(error, EngineRefused):
        if error.status in _TRY_ELSEWHERE or (error.status == 503 and error.wait_s is not None):
            return "busy"
        return "engine" if error.status >= 500 else "none"
    if isinstance(error, EngineTimeout):
        return "none" if error.stage == "total" else "engine"
    return "engine" if isinstance(error, EngineError) and not isinstance(error, EngineDiffers) else "none"


def elsewhere(error: GatewayError) -> bool:
    """Whether another engine may do better."""
    if isinstance(error, EngineRefused):
        return error.status >= 500 or error.status in _TRY_ELSEWHERE
    if isinstance(error, EngineTimeout):
        return error.stage != "total"
    return isinstance(error, EngineError)


def refuses(error: GatewayError) -> bool:
    """Whether the engine says that the request is wrong."""
    if isinstance(error, EngineRefused):
        return error.status < 500 and error.status not in _TRY_ELSEWHERE
    return isinstance(error, BadRequest | ContextTooLong)


def failure_of(error: GatewayError) -> str:
    """The word for an attempt that failed with this: the error's, but where the request or its answer was wrong."""
    if refuses(error):
        return "bad_request"
    return "answer_refused" if isinstance(error, AnswerRefused) else error.reason


def deadly(error: GatewayError, after_s: float, *, begun: bool = False) -> bool:
    """Whether the request may have taken the engine down: it was gone within a second, or in the middle of the answer that was
    `begun`, or out of memory."""
    if isinstance(error, EngineGone):
        return begun or after_s <= DEADLY_S
    return isinstance(error, EngineRefused | EngineBroke) and error.out_of_memory


@dataclass(frozen=True, slots=True)
class RetryRules:
    """At most `attempts` of one answer. At most `floor` retries at a time, or this share of the requests that run."""

    attempts: int = 3
    floor: int = 3
    share: float = 0.1

    def room(self, in_flight: int) -> int:
        """How many retries may run beside so many requests."""
        return max(self.floor, int(self.share * in_flight))


class Tries(msgspec.Struct):
    """The attempts of one answer. `deaths` are the engines that its request may have taken down, whichever of its answers they
    made. `unable` are kinds of engines that lack what it asks for: they were asked nothing."""

    failed: list[str] = msgspec.field(default_factory=list)  # engines
    resumes: int = 0
    deaths: set[str] = msgspec.field(default_factory=set)
    unable: set[str] = msgspec.field(default_factory=set)
    first: GatewayError | None = None  # that an engine failed with
    wait_s: float | None = None  # when the first engine that had no room may have some

    def after(
        self, engine: str, error: GatewayError, after_s: float, rules: RetryRules, *, begun: bool = False, resumed: bool = False
    ) -> Stopped | None:
        """Counts a failure of an answer that was `begun`, or that this engine was to go on with (`resumed`). Why nothing may
        follow it; None where another engine may be tried."""
        self.failed.append(engine)
        self.first = self.first or error
        if isinstance(error, EngineRefused) and error.wait_s is not None:
            self.wait_s = error.wait_s if self.wait_s is None else min(self.wait_s, error.wait_s)
        if not elsewhere(error) and not (resumed and refuses(error)):
            return "final"
        if deadly(error, after_s, begun=begun):
            self.deaths.add(engine)
        if len(self.deaths) >= MOST_DEADLY:
            return "poison"
        return "attempts" if len(self.failed) >= rules.attempts else None

    def told(self, error: GatewayError, *, resumed: bool = False) -> GatewayError:
        """What the client is told of a failure that nothing follows. What an engine that was to go on with an answer has against
        the request is not the client's fault, as another had taken it: the first failure is."""
        return self.first if resumed and refuses(error) and self.first is not None else error
