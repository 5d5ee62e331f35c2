"""Sockets, and the servers on them, until they are told to stop and have drained.

Invariant: nothing that runs is cut before the limit, and what is cut then is told so; after it a client that takes nothing holds
the process for no more than `_TELL_S`.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.server.protocol import BoundedHttp, Shared

_log = structlog.get_logger("interlock.server")

BACKLOG = 2048
_UNSENT_BYTES = 16 * 1024
_LOOK_S = 0.05
_TELL_S = 1.2  # longer than a request waits for a client that takes nothing
_CUT_S = 0.4  # the same, where the operator does not wait


class PortTaken(Exception):
    """The address cannot be listened on; the message says which and why. `in_use`: another program does."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {error.strerror or error}")
        self.in_use = error.errno == errno.EADDRINUSE


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, not yet accepting. Raises PortTaken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortTaken(host, port, error) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections have this of the socket that accepts them. What a slow client has not taken waits where its engine waits
        # for it, not by the megabyte in the kernel, and what it takes is seen as it does.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        bound.bind(address)
        bound.listen(BACKLOG)  # now, so that of two that start at once one learns that the port is taken
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise PortTaken(host, port, error) from None
    return bound


def give_up_on_deaf(bound: socket.socket, after_s: float) -> None:
    """The kernel resets connections whose client has taken nothing for so long of what is there for it: whole answers too, which
    nobody waits for any more."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(round(after_s * 1000), 2**31 - 1))


def port_of(bound: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one place for signals, and two servers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(_config(app))
        self._state = self.server_state = Shared()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield

    def last_answers(self) -> None:
        """Each answer is the last of its connection: what the client asks next, it asks another gateway."""
        self._state.last = True
        for connection in self._connections():
            connection.last_answer()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or the end of an answer is still on its way to its client."""
        return bool(self._state.tasks) or any(connection.transport.is_closing() for connection in self._connections())

    def cut(self) -> int:
        """Ends every request that is being answered, which tells its client; how many there were."""
        for task in (running := list(self._state.tasks)):
            task.cancel()
        return len(running)

    def drop(self) -> None:
        """Resets the connections of clients that do not take the end of their answer."""
        for connection in self._connections():
            if not connection.idle:
                connection.transport.abort()

    async def quiet(self, until_s: float) -> None:
        """Returns when nothing is being answered, or at this time of the loop."""
        loop = asyncio.get_running_loop()
        while self.busy and loop.time() < until_s:  # noqa: ASYNC110 - uvicorn tells nobody when a connection ends
            await asyncio.sleep(_LOOK_S)

    def _connections(self) -> list[BoundedHttp]:
        return [connection for connection in self._state.connections if isinstance(connection, BoundedHttp)]


@dataclass(frozen=True, slots=True)
class Drain:
    """How a server goes down: it takes new requests for `grace_s` after the signal, then calls `close`, which makes its
    application refuse them; what runs may go on until `limit_s` after the signal."""

    grace_s: float
    limit_s: float
    close: Callable[[], None]


Place = tuple[socket.socket, ASGIApp]


async def serve_until(stop: asyncio.Event, api: Place, admin: Place, drain: Drain) -> None:
    """Serves both applications on their sockets until `stop`, and the API until it has drained. A cancellation cuts all now.

    The sockets stay open meanwhile: a client that comes late is told so, and the admin port tells how the drain goes.
    """
    servers = [_Server(app) for _, app in (api, admin)]
    tasks = [asyncio.create_task(each.serve(sockets=[bound])) for each, (bound, _) in zip(servers, (api, admin), strict=True)]
    stopping = asyncio.create_task(stop.wait())
    tell_s = _CUT_S
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await _drained(servers[0], drain)
            tell_s = _TELL_S
    finally:
        stopping.cancel()
        await _end(servers, tasks, tell_s)


async def _drained(server: _Server, drain: Drain) -> None:
    """Returns when nothing runs any more, or at the limit."""
    until_s = asyncio.get_running_loop().time() + drain.limit_s
    server.last_answers()
    await asyncio.sleep(min(drain.grace_s, drain.limit_s))
    drain.close()
    await server.quiet(until_s)


async def _end(servers: list[_Server], tasks: "list[asyncio.Task[None]]", tell_s: float) -> None:
    """Ends the servers, after those whose requests are cut had `tell_s` to tell their clients."""
    if cut := sum(server.cut() for server in servers):
        _log.warning("going down: requests were cut", requests=cut)
    until_s = asyncio.get_running_loop().time() + tell_s
    for server in servers:
        await server.quiet(until_s)
        server.drop()
        server.should_exit = server.force_exit = True
    await asyncio.gather(*tasks)


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,  # by then nothing runs
        backlog=BACKLOG,
    )
