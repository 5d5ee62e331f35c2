"""One attempt on one engine, as the engine's standing sees it: what became of it is counted once, whoever tells it how often."""

from collections.abc import Callable

from gateway.errors import EngineGone, EngineRefused, EngineUnreachable, GatewayError
from gateway.fleet.standing import Standing
from gateway.routing.retry import blame


class Visit:
    """It begins when it is made. `clock` is the registry's; `lost` is called where the engine was found gone, `give_up` where
    probes find it gone and silent for so many seconds."""

    def __init__(
        self,
        standing: Standing,
        clock: Callable[[], float],
        lost: Callable[[], None],
        give_up: Callable[[float], None] | None = None,
    ) -> None:
        self._standing = standing
        self._clock = clock
        self._lost = lost
        self._over = False
        self._give_up = give_up
        if give_up is not None:
            standing.visitors.add(give_up)
        self._number = standing.breaker.started(clock())

    def heard(self) -> None:
        """The engine generates for it."""
        self._standing.heard_s = self._clock()
        if not self._over:
            self._standing.breaker.heard(self._number)

    def served(self) -> None:
        """It was answered."""
        if self._ends():
            self._standing.breaker.succeeded(self._number)
            self._standing.served()

    def failed(self, error: GatewayError) -> None:
        """It failed, whoever is to blame."""
        if not self._ends():
            return
        standing, now_s = self._standing, self._clock()
        match blame(error):
            case "engine":
                standing.breaker.failed(self._number, now_s)
            case "unreached":
                standing.breaker.failed(self._number, now_s, unreached=True)
            case "busy":
                standing.breaker.excused(self._number)
                standing.busy(now_s, error.wait_s if isinstance(error, EngineRefused) else None)
            case "none":
                standing.breaker.excused(self._number)
        if isinstance(error, EngineUnreachable | EngineGone):
            self._lost()

    def over(self) -> None:
        """It ended. Where nothing else was told of it, that says nothing of the engine."""
        if self._ends():
            self._standing.breaker.excused(self._number)

    def _ends(self) -> bool:
        ended, self._over = self._over, True
        if self._give_up is not None:
            self._standing.visitors.discard(self._give_up)
        return not ended
