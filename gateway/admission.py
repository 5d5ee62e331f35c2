"""Whether a request may start now, must wait, or is sent away.

A request passes at once while its model has a ready engine, however many run on it: an engine queues requests itself. Otherwise
it waits, within `queue_wait_s`, with at most `queue_requests` of all models; a client that leaves while it waits costs nothing,
and no engine ever hears of it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.errors import Rejected, shown
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
    async def admit(self, model: str, on_wait: Callable[[float], None]) -> AsyncIterator[None]:
        """Enters when the model has a ready engine. Raises Rejected. `on_wait` is told the seconds of any wait."""
        if not self._registry.view(model).ready:
            await self._wait(model, on_wait)
        yield

    async def _wait(self, model: str, on_wait: Callable[[float], None]) -> None:
        if self._waiting >= self._queue_requests:
            raise Rejected(
                f"No engine of {shown(model)} is ready, and {self._queue_requests} requests wait already; `/ready` says why.",
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
                f"No engine of {shown(model)} became ready in {self._queue_wait_s:g} s; `/ready` says why.",
                reason="no_engine",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
        finally:
            self._waiting -= 1
            on_wait(loop.time() - began)
