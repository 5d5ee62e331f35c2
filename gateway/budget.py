"""How many retries run at a time: few, so that they cannot be what keeps a failing fleet down.

A retry counts until its engine generates. One that finds no room waits its turn, so that the answers of an engine that died are
all gone on with, a few at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.routing.retry import RetryRules

WAIT_S = 30.0  # a slow engine may have many to go on with


class Permit:
    """The room of one retry. It may be given back more than once."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def give_back(self) -> None:
        """The retry goes well, or is over."""
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


class RetryBudget:
    """The retries of one gateway. `in_flight` gives the attempts that run; requests that wait for a retry are in flight too."""

    def __init__(self, rules: RetryRules, in_flight: Callable[[], int]) -> None:
        self.rules = rules
        self._in_flight = in_flight
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        """Retries that have room now."""
        return self._running

    async def permit(self, wait_s: float = WAIT_S) -> Permit | None:
        """Room for a retry, in the order of asking; None where there was none in time."""
        if not self._room(1):
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._pump()
        if not turn.done():
            try:
                async with asyncio.timeout(wait_s):
                    await turn
            except TimeoutError:
                if not turn.done() or turn.cancelled():  # else it came just in time
                    return None
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._over()
                raise
            finally:
                if not turn.done() or turn.cancelled():
                    self._waiting = deque(each for each in self._waiting if each is not turn)
        return Permit(self._over)

    def _room(self, asking: int = 0) -> int:
        return self.rules.room(self._in_flight() + len(self._waiting) + asking)

    def _over(self) -> None:
        self._running -= 1
        self._pump()

    def _pump(self) -> None:
        while self._waiting and self._running < self._room():
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)
