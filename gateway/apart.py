"""Work that may never end, on threads that hold nobody up: files and names, of which a server may hang for ever.

Invariant: neither the loop's executor nor the process's exit waits for such a thread: it goes with the process.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from aiohttp.abc import AbstractResolver, ResolveResult

T = TypeVar("T")

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_AS_NUMBERS = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
_Found = tuple[socket.AddressFamily, int, str]


async def apart(work: Callable[[], T]) -> T:
    """What `work` gives, on a thread of its own; raises what it raises. A cancellation leaves the thread to itself: callers see
    to it that no more are started than they can bear."""
    end = _End[T]()

    def run() -> None:
        with end:
            end.value.append(work())

    threading.Thread(target=run, name="interlock-apart", daemon=True).start()
    await end.waited()
    return end.value[0]


class _End(Generic[T]):
    """How a piece of work ended: what it gave, or what it raised, told to the loop that waits for it."""

    def __init__(self) -> None:
        self.value: list[T] = []
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[None] = self._loop.create_future()

    def __enter__(self) -> None:
        """On the thread."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._tell, error)
        return True

    def _tell(self, error: BaseException | None) -> None:
        if self._told.done():
            return
        if error is not None:
            self._told.set_exception(error)
        else:
            self._told.set_result(None)

    async def waited(self) -> None:
        """Raises what the work raised."""
        await self._told


class Names(AbstractResolver):
    """Names as the system resolves them. One that is asked for is asked for once at a time, however many wait for it: there are
    no more threads than names."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], asyncio.Task[Sequence[_Found]]] = {}

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """A name's places, for the HTTP client. Raises OSError."""
        return [
            ResolveResult(hostname=host, host=address, port=port, family=each, proto=protocol, flags=_NUMERIC)
            for each, protocol, address in await self._found(host, family)
        ]

    async def addresses(self, host: str) -> Sequence[str]:
        """A name's addresses. Raises OSError."""
        return [address for *_, address in await self._found(host, socket.AF_UNSPEC)]

    async def close(self) -> None:
        """Waits for no answer."""
        asked = list(self._asked.values())
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    async def _found(self, host: str, family: int) -> Sequence[_Found]:
        key = host, int(family)
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.create_task(apart(partial(_found, host, family)))
            asked.add_done_callback(partial(self._over, key))
        return await asyncio.shield(asked)

    def _over(self, key: tuple[str, int], asked: "asyncio.Task[Sequence[_Found]]") -> None:
        """Its error is nobody's where all who waited have left."""
        self._asked.pop(key, None)
        if not asked.cancelled():
            asked.exception()


def _found(host: str, family: int) -> Sequence[_Found]:
    found = socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(each, protocol, _written(address)) for each, _, protocol, _, address in found]


def _written(address: tuple[Any, ...]) -> str:
    """A link-local address has its interface with it."""
    return socket.getnameinfo(address, _AS_NUMBERS)[0] if len(address) > 3 and address[3] else str(address[0])
