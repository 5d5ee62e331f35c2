"""Sockets, and the servers on them, until they are told to stop."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from gateway.server.protocol import BoundedHttp

BACKLOG = 2048


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
        bound.bind(address)
        bound.listen(BACKLOG)  # now, so that of two that start at once one learns that the port is taken
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise PortTaken(host, port, error) from None
    return bound


def port_of(bound: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one place for signals, and two servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


async def serve_until(stop: asyncio.Event, places: Sequence[tuple[socket.socket, ASGIApp]], *, drain_s: float) -> None:
    """Serves each application on its socket until `stop`; then running answers may go on for `drain_s`.

    The last place is served until the others are done: it is the admin port, which tells how the drain goes.
    """
    servers = [_Server(_config(app, drain_s)) for _, app in places]
    tasks = [asyncio.create_task(server.serve(sockets=[bound])) for server, (bound, _) in zip(servers, places, strict=True)]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for server, task in zip(servers, tasks, strict=True):
            server.should_exit = True
            await task
    finally:
        stopping.cancel()
        for server in servers:
            server.should_exit = server.force_exit = True
        await asyncio.gather(*tasks)


def _config(app: ASGIApp, drain_s: float) -> uvicorn.Config:
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
        timeout_graceful_shutdown=max(1, round(drain_s)),
        backlog=BACKLOG,
    )
