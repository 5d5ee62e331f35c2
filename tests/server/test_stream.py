"""The client's side of an exchange where writers meet: pings, pieces of the answer and its end."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from gateway.server.stream import Client

Message = MutableMapping[str, Any]


class Socket:
    """Takes nothing until it is opened, as a connection whose last answer is not read yet."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(self, message: Message) -> None:
        await self.opened.wait()
        assert (message["type"] == "http.response.start") is (self.sent == [])
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def begun(socket: Socket) -> Client:
    """A client whose first ping waits for the socket."""
    client = Client(socket.receive, socket.send, headers=(), grace_s=0.01)
    client.expect_stream()
    await asyncio.sleep(0.05)
    return client


async def test_an_answer_that_ends_while_a_ping_waits_begins_with_headers() -> None:
    socket = Socket()
    client = await begun(socket)
    ending = asyncio.create_task(client.finish(b"data: all\n\n"))
    await asyncio.sleep(0.01)
    socket.opened.set()
    await asyncio.wait_for(ending, 1)
    assert socket.body == b"data: all\n\n"
    assert socket.sent[-1]["more_body"] is False


async def test_pieces_that_wait_at_once_share_the_headers() -> None:
    socket = Socket()
    client = await begun(socket)
    writing = [asyncio.create_task(client.write(piece)) for piece in (b"a", b"b")]
    await asyncio.sleep(0.05)
    socket.opened.set()
    stalled = await asyncio.wait_for(asyncio.gather(*writing), 1)
    await client.finish(b"c")
    assert socket.body == b": ping\n\nabc"
    assert min(stalled) > 0.03
    assert client.stall_s > 0.06


async def test_an_error_while_a_ping_waits_is_an_http_error() -> None:
    socket = Socket()
    async with await begun(socket) as client:
        pass
    await asyncio.sleep(0)
    assert not client.started
    socket.opened.set()
    await client.reply(503, b"{}")
    assert [message.get("status") for message in socket.sent] == [503, None]


@pytest.mark.parametrize("idle_s", [0.0, 0.3])
async def test_pings_come_only_while_nothing_else_does(idle_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.stream.PING_S", 0.1)
    socket = Socket()
    socket.opened.set()
    client = Client(socket.receive, socket.send, headers=(), grace_s=0.15)
    client.expect_stream()
    for _ in range(6):
        await client.write(b"a")
        await asyncio.sleep(0.05)
    await asyncio.sleep(idle_s)
    await client.finish(b"")
    await asyncio.sleep(0.25)
    assert (b": ping" in socket.body) is (idle_s > 0)
    assert socket.sent[-1]["more_body"] is False
