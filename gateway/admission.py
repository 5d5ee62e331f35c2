"""Whether a request may start now, must wait, or is sent away.

A request passes at once while its model has a ready engine. Otherwise it waits, within `queue_wait_s`, in a queue of at most
`queue_requests`; a client that leaves while it waits costs nothing, and no engine ever hears of it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.errors import Rejected
from gateway.fleet.registry import Registry

_RETRY_AFTER_S = 1.0


class Admission:
    """The gate in front of one registry."""

    def __init__(self, registry: Registry, *, queue_requests: int, queue_wait_s: float) -> None:
        self._registry = registry
        self._queue_requests = queue_requests
        self._queue_wait_s = queue_wait_s
        self._waiting = 0

    @asynccontextmanager
    async def admit(self, model: str) -> AsyncIterator[float]:
        """Enters when the model has a ready engine, giving the seconds waited. Raises Rejected."""
        yield 0.0 if self._registry.view(model).ready else await self._wait(model)

    async def _wait(self, model: str) -> float:
        if self._waiting >= self._queue_requests:
            raise Rejected(
                f"No engine is ready and {self._queue_requests} requests wait already.",
                reason="queue_full",
                retry_after_s=_RETRY_AFTER_S,
            )
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._queue_wait_s):
                while not self._registry.view(model).ready:
                    await self._registry.changed()
        except TimeoutError:
            raise Rejected(
                f"No engine became ready in {self._queue_wait_s:g} s.", reason="no_engine", retry_after_s=_RETRY_AFTER_S
            ) from None
        finally:
            self._waiting -= 1
        return loop.time() - began
