"""One process: its ports, what it says of them at start, and how parts of it end together."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.gateway import serving, settings_for
from support.scripted_engine import ScriptedEngine

from gateway import process
from gateway.app import with_models
from gateway.server.listen import Drain, PortTaken, bind, port_of, serve_until
from gateway.settings_parts import ServerSettings


@contextmanager
def taken() -> Iterator[int]:
    with bind("127.0.0.1", 0) as held:
        yield port_of(held)


def test_of_two_that_bind_at_once_one_learns_it() -> None:
    with taken() as port, pytest.raises(PortTaken, match=f"^cannot listen on 127.0.0.1:{port}: Address already in use$"):
        bind("127.0.0.1", port)


def test_an_ipv6_address_can_be_bound() -> None:
    with bind("::1", 0) as bound:
        assert bound.family is socket.AF_INET6


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(PortTaken, match=r"^cannot listen on no\.such\.host\.invalid:0: "):
        bind("no.such.host.invalid", 0)


def test_when_the_admin_port_is_taken_neither_is_held() -> None:
    with bind("127.0.0.1", 0) as free:
        main = port_of(free)
    with taken() as admin, pytest.raises(PortTaken, match=str(admin)):
        process.bind_both(ServerSettings(port=main, admin_port=admin))
    bind("127.0.0.1", main).close()


async def test_another_admin_port_is_taken_where_the_usual_one_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedEngine().running() as engine:
        with taken() as taken_port, capture_logs() as logs:
            monkeypatch.setattr(process, "DEFAULT_ADMIN_PORT", taken_port)
            settings = settings_for(engine.url, server={"admin_port": None})
            async with serving(settings) as served:
                assert (await served.client.get(f"{served.admin_url}/ready")).status_code == 200
        with bind("127.0.0.1", 0) as free:
            usual = port_of(free)
        monkeypatch.setattr(process, "DEFAULT_ADMIN_PORT", usual)
        async with serving(settings_for(engine.url, server={"admin_port": None})) as served:
            assert served.admin_url.endswith(f":{usual}")
    said = [each["admin_port"] for each in logs if each["event"] == f"port {taken_port} is taken: a free one is the admin port"]
    assert said == [next(each["admin_port"] for each in logs if each["event"] == "serving")]


@pytest.mark.parametrize(
    ("server", "warned"),
    [
        ({}, None),
        ({"host": "localhost", "admin_host": "127.0.0.2"}, None),
        ({"host": "0.0.0.0"}, ["server.host"]),
        ({"admin_host": "0.0.0.0"}, ["server.admin_host"]),
        ({"host": "0.0.0.0", "admin_host": "::"}, ["server.host", "server.admin_host"]),
    ],
)
async def test_what_others_reach_is_one_warning_and_shows_no_metrics(server: dict[str, str], warned: list[str] | None) -> None:
    reached = "127.0.0.2" if server.get("admin_host") == "127.0.0.2" else "127.0.0.1"
    async with ScriptedEngine().running() as engine:
        with capture_logs() as logs:
            async with serving(settings_for(engine.url, server=server)) as served:
                metrics = await served.client.get("/metrics")
                admin = served.admin_url.replace("127.0.0.1", reached)
                own = await served.client.get(f"{admin}/metrics")
    warnings = [each for each in logs if each["log_level"] == "warning"]
    assert [each["settings"] for each in warnings if "settings" in each] == ([warned] if warned else [])
    assert metrics.status_code == (404 if warned and "server.host" in warned else 200)
    assert own.status_code == 200


async def test_what_runs_beside_ends_the_gateway_when_it_fails() -> None:
    async def fail(*_: object) -> None:
        raise LookupError("no greeting")

    async with ScriptedEngine().running() as engine:
        configured = with_models(settings_for(engine.url))
        sockets = process.bind_both(configured.settings.server)
        with pytest.raises(LookupError, match="no greeting"):
            await asyncio.wait_for(process.serve(configured, os.environ, sockets, asyncio.Event(), on_ready=fail), 10)
        bind("127.0.0.1", 0).close()
    assert sockets[0].fileno() == -1


async def test_work_is_dropped_when_it_is_told_to_stop() -> None:
    stop, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.02)
            cleaned.set()

    asyncio.get_running_loop().call_later(0.02, stop.set)
    await process.unless_stopped(work(), stop)
    assert cleaned.is_set()


async def test_work_that_fails_says_so() -> None:
    async def work() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        await process.unless_stopped(work(), asyncio.Event())


async def test_both_ports_are_served_while_the_api_drains() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await asyncio.sleep(0.6)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def status(port: int, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())
        line = await reader.readline()
        writer.close()
        return line

    main, admin = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    ports = port_of(main), port_of(admin)
    stop = asyncio.Event()
    closed = asyncio.Event()
    drain = Drain(grace_s=0, limit_s=5, close=closed.set)
    serving = asyncio.create_task(serve_until(stop, (main, application), (admin, application), drain))
    await asyncio.sleep(0.1)
    slow = asyncio.create_task(status(ports[0], "/slow"))
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.sleep(0.25)
    assert closed.is_set()
    for port in ports:
        assert (await status(port, "/")).startswith(b"HTTP/1.1 204")
    assert (await slow).startswith(b"HTTP/1.1 204")
    await asyncio.wait_for(serving, 5)
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            await status(port, "/")
