"""One gateway process: ports, signals, and what is said at start."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping

import structlog
import uvloop

from gateway.app import Configured, Gateway, Records, running
from gateway.server.listen import Drain, PortTaken, bind, give_up_on_deaf, port_of, serve_until
from gateway.settings_parts import ServerSettings
from gateway.start import ENDING
from gateway.wiring import is_loopback

_log = structlog.get_logger("interlock")

DEFAULT_ADMIN_PORT = 8081
NO_KEYS = "reachable beyond this machine without keys: this version checks none"
_YOUNG_OBJECTS = 20_000  # a busy moment's requests, rather than a part of one

Ready = Callable[[Gateway, int], Coroutine[None, None, None]]


def run(main: Callable[[asyncio.Event], Coroutine[None, None, int]]) -> int:
    """Runs `main` on uvloop until it returns. SIGINT or SIGTERM sets its event; a second one cuts everything at once. After it
    they do nothing: the process is about to end, with the code that this gives."""

    async def with_signals() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def signalled() -> None:
            if stop.is_set() and task is not None and not task.cancelling():  # a third one disturbs no cut
                task.cancel()
            stop.set()

        for number in ENDING:
            loop.add_signal_handler(number, signalled)
        try:
            return await main(stop)
        finally:
            for number in ENDING:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(with_signals())
        except asyncio.CancelledError:
            return 1


def bind_both(server: ServerSettings) -> tuple[socket.socket, socket.socket]:
    """The API's socket and the admin's. Raises PortTaken."""
    main = bind(server.host, server.port)
    try:
        return main, _bind_admin(server)
    except PortTaken:
        main.close()
        raise


def _bind_admin(server: ServerSettings) -> socket.socket:
    if server.admin_port is not None:
        return bind(server.admin_host, server.admin_port)
    try:
        return bind(server.admin_host, DEFAULT_ADMIN_PORT)
    except PortTaken:
        return bind(server.admin_host, 0)


async def serve(
    configured: Configured,
    environ: Mapping[str, str],
    sockets: tuple[socket.socket, socket.socket],
    stop: asyncio.Event,
    *,
    on_ready: Ready | None = None,
    access: Records | None = None,
) -> None:
    """Serves until `stop`. `on_ready` runs beside, once the ports answer; what it raises ends the gateway. `access` takes the
    records of the access log."""
    main, admin = sockets
    server = configured.settings.server
    give_up_on_deaf(main, 2 * configured.settings.timeouts.client_s)  # the request's own limit comes first
    async with running(configured, environ, access) as gateway:
        _announce(server, port_of(main), port_of(admin))
        _spare_the_collector()
        drain = Drain(server.drain_grace_s, server.drain_s, gateway.condition.close)
        tasks = [asyncio.create_task(serve_until(stop, (main, gateway.main), (admin, gateway.admin), drain))]
        draining = asyncio.create_task(_mark_draining(stop, gateway, server))
        if on_ready is not None:
            tasks.append(asyncio.create_task(unless_stopped(on_ready(gateway, port_of(main)), stop)))
        try:
            with _hung_up(gateway.reload):
                await asyncio.gather(*tasks)
        finally:
            stop.set()
            draining.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _hung_up(reload: Callable[[], None] | None) -> Iterator[None]:
    """SIGHUP reads the settings file again, where there is one."""
    if reload is None:
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)


def _spare_the_collector() -> None:
    """What is loaded now lives as long as the process: the collector need not walk it again, which saves a request 5 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


async def unless_stopped(work: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    """Does the work, or drops it when the process is told to stop."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.wait([working])  # what it must clean up is done before anyone goes on


async def _mark_draining(stop: asyncio.Event, gateway: Gateway, server: ServerSettings) -> None:
    await stop.wait()
    gateway.condition.draining = True
    _log.info(
        "going down: running answers are finished first; a second signal cuts them",
        drain_s=server.drain_s,
        drain_grace_s=server.drain_grace_s,
    )


def _announce(server: ServerSettings, port: int, admin_port: int) -> None:
    if server.admin_port is None and admin_port != DEFAULT_ADMIN_PORT:
        _log.info(f"port {DEFAULT_ADMIN_PORT} is taken: a free one is the admin port", admin_port=admin_port)
    _log.info("serving", host=server.host, port=port, admin_host=server.admin_host, admin_port=admin_port)
    if open_to := beyond_loopback(server):
        _log.warning(NO_KEYS, settings=open_to)


def beyond_loopback(server: ServerSettings) -> list[str]:
    """The keys of the addresses that other machines can reach."""
    return [f"server.{name}" for name in ("host", "admin_host") if not is_loopback(getattr(server, name))]
