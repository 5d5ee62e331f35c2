"""The HTTP client: every failure is one of ours and names no address; connections are used again; nothing piles up."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from support.scripted_engine import CLOSE, HANG, HEAD, KEEP, RESET, ScriptedEngine, Step, chunked
from yarl import URL

from engines.base import Call
from gateway.errors import EngineBroke, EngineError, EngineGone, EngineTimeout, EngineUnreachable
from gateway.lag import LoopLag
from gateway.upstream import Exchange, Upstream, retry_after_s

CALL = Call("/completion", b'{"prompt": [1]}', {"x-extra": "1"})
WHOLE: list[Step] = [HEAD, chunked(b"data: 1\n\n"), b"0\r\n\r\n", CLOSE]
KEEP_HEAD = HEAD.replace(b"connection: close\r\n", b"")
KEPT: list[Step] = [KEEP_HEAD, chunked(b"data: 1\n\n"), b"0\r\n\r\n", KEEP]


@contextlib.asynccontextmanager
async def engine(steps: list[Step]) -> AsyncIterator[tuple[ScriptedEngine, Upstream]]:
    async with ScriptedEngine().running() as running, Upstream() as upstream:
        running.script = lambda seen: steps
        yield running, upstream


@contextlib.asynccontextmanager
async def listening(
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[asyncio.Server]:
    """An engine of the test's own, which is over at the end."""
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            await accept(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server
    finally:
        server.close()
        await asyncio.gather(*filter(None, tasks))
        await asyncio.sleep(0.01)


async def opened(upstream: Upstream, url: str, call: Call = CALL, **changed: Any) -> Exchange:
    return await upstream.open(URL(url) / call.path[1:], call, **{"api_key": None, "connect_s": 1.0, **changed})


async def whole(exchange: Exchange) -> bytes:
    """The whole body; the connection is given back, or closed where it broke."""
    try:
        body = b""
        while data := await exchange.read():
            body += data
    except BaseException:
        exchange.close()
        raise
    exchange.release()
    return body


async def test_an_answer_is_read_as_it_comes() -> None:
    async with engine([HEAD, chunked(b"a"), 0.1, chunked(b"b"), b"0\r\n\r\n", CLOSE]) as (running, upstream):
        exchange = await opened(upstream, running.url)
        assert (exchange.status, exchange.content_type) == (200, "text/event-stream")
        assert [await exchange.read() for _ in range(3)] == [b"a", b"b", b""]
        exchange.release()
    sent = running.calls[0].headers
    assert (sent["content-type"], sent["x-extra"]) == ("application/json", "1")
    assert {"authorization", "cookie", "accept-encoding", "user-agent"}.isdisjoint(sent)


async def test_the_key_goes_out_as_a_bearer_token() -> None:
    async with engine(WHOLE) as (running, upstream):
        await whole(await opened(upstream, running.url, api_key="sk-canary"))
        assert await upstream.get(URL(running.url) / "health", api_key="sk-canary", limit_s=1) == (200, b'{"status": "ok"}')
    assert {seen.headers["authorization"] for seen in running.seen} == {"Bearer sk-canary"}


@pytest.mark.parametrize("size", [10, 512 * 1024, 5_000_000])
async def test_bodies_of_any_size_arrive_whole(size: int) -> None:
    async with engine(WHOLE) as (running, upstream):
        exchange = await opened(upstream, running.url, Call("/completion", b'"' + b"x" * size + b'"'))
        assert await whole(exchange) == b"data: 1\n\n"
    assert running.calls[0].body == "x" * size
    assert running.calls[0].headers["content-length"] == str(size + 2)


async def test_a_released_connection_is_used_again() -> None:
    async with engine(KEPT) as (running, upstream):
        for _ in range(3):
            exchange = await opened(upstream, running.url)
            assert await exchange.read() == b"data: 1\n\n"
            exchange.release()
            await asyncio.sleep(0.05)
        assert running.connections == 1


async def test_a_kept_connection_that_the_engine_closes_costs_no_call() -> None:
    """As llama.cpp does after each stream: promised to be kept, closed at once, with the next call on its way."""
    closing: list[Step] = [KEEP_HEAD, chunked(b"data: 1\n\n"), b"0\r\n\r\n", CLOSE]
    async with engine(closing) as (running, upstream):
        for _ in range(20):
            assert await whole(await opened(upstream, running.url)) == b"data: 1\n\n"
    assert len(running.calls) == 20


async def test_a_call_that_no_new_connection_answers_has_failed() -> None:
    async with engine(KEPT) as (running, upstream):
        await whole(await opened(upstream, running.url))
        running.script = lambda seen: [CLOSE]
        with pytest.raises(EngineBroke):
            await opened(upstream, running.url)
    assert len(running.calls) == 3  # answered; on the kept connection; on a new one


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_a_call_on_a_connection_made_for_it_is_never_sent_again(end: str) -> None:
    async with engine([end]) as (running, upstream):
        for calls in (1, 2, 3):
            with pytest.raises(EngineGone):
                await opened(upstream, running.url)
            assert (len(running.calls), running.connections) == (calls, calls)


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-type: text/"])
async def test_a_call_whose_answer_has_begun_is_not_sent_again(part: bytes) -> None:
    async with engine(KEPT) as (running, upstream):
        await whole(await opened(upstream, running.url))
        running.script = lambda seen: [part, CLOSE]
        with pytest.raises(EngineGone):
            await opened(upstream, running.url)
        assert running.connections == 1
    assert len(running.calls) == 2


async def test_a_call_is_sent_once_more_however_many_connections_are_kept() -> None:
    async with engine(KEPT) as (running, upstream):
        for exchange in [await opened(upstream, running.url) for _ in range(5)]:
            await whole(exchange)
        running.script = lambda seen: [CLOSE]
        with pytest.raises(EngineGone):
            await opened(upstream, running.url)
        assert len(running.calls) == 5 + 2
        running.script = lambda seen: WHOLE
        assert await whole(await opened(upstream, running.url)) == b"data: 1\n\n"


async def test_a_probe_that_meets_the_end_of_kept_connections_goes_out_on_a_new_one() -> None:
    """The first to be used on each connection is answered, and nothing after it."""
    accepted = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            await reader.readexactly(len(CALL.body))
        writer.write(KEEP_HEAD + chunked(b"data: 1\n\n") + b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")

    async with listening(accept) as server, Upstream() as upstream:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for exchange in [await opened(upstream, url) for _ in range(5)]:
            await whole(exchange)
        assert await upstream.get(URL(url) / "health", api_key=None, limit_s=2) == (200, b"data: 1\n\n")
    assert accepted == 5 + 1


async def test_an_engine_that_dies_of_a_call_on_a_kept_connection_is_gone_and_not_just_unreachable() -> None:
    calls = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        while await reader.readuntil(b"\r\n\r\n") and await reader.readexactly(len(CALL.body)):
            calls += 1
            if calls == 2:
                server.close()
                writer.transport.abort()
                return
            writer.write(KEEP_HEAD + chunked(b"data: 1\n\n") + b"0\r\n\r\n")

    async with listening(accept) as server, Upstream() as upstream:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await whole(await opened(upstream, url))
        with pytest.raises(EngineGone):
            await opened(upstream, url)
        with pytest.raises(EngineUnreachable):
            await opened(upstream, url)
    assert calls == 2


@pytest.mark.parametrize(("more", "kept"), [(b"", True), (b"\n", True), (b"data: odd\n\n", False), (b"data: [DONE]\n\n", False)])
async def test_a_connection_on_which_the_engine_went_on_is_not_used_again(more: bytes, *, kept: bool) -> None:
    connections = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readuntil(b"\r\n\r\n") and await reader.readexactly(len(CALL.body)):
            writer.write(KEEP_HEAD + chunked(b"data: 1\n\n"))
            await asyncio.sleep(0.03)
            writer.write((chunked(more) if more else b"") + b"0\r\n\r\n")

    async with listening(accept) as server, Upstream() as upstream:
        for _ in range(2):
            exchange = await opened(upstream, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            assert await exchange.read() == b"data: 1\n\n"
            exchange.release()
            await asyncio.sleep(0.15)
    assert connections == (1 if kept else 2)


async def test_a_connection_whose_answer_was_overrun_in_the_same_bytes_is_not_used_again() -> None:
    async with engine(KEPT) as (running, upstream):
        for _ in range(2):
            exchange = await opened(upstream, running.url)
            assert await exchange.read() == b"data: 1\n\n"
            exchange.overrun = True
            exchange.release()
    assert running.connections == 2


async def test_a_connection_is_given_back_by_its_reader_not_by_the_end_of_the_body() -> None:
    async with engine(KEPT) as (running, upstream):
        held = await opened(upstream, running.url)
        await asyncio.sleep(0.05)  # all of it has come
        await whole(await opened(upstream, running.url))
        assert running.connections == 2
        await whole(held)
        for exchange in [await opened(upstream, running.url) for _ in range(2)]:
            await whole(exchange)
        assert running.connections == 2


async def test_release_waits_for_the_end_of_the_body() -> None:
    async with engine([KEEP_HEAD, chunked(b"data: 1\n\n"), 0.05, b"0\r\n\r\n", 5.0]) as (running, upstream):
        exchange = await opened(upstream, running.url)
        await exchange.read()
        exchange.release()
        await asyncio.sleep(0.1)
        assert not running.calls[0].closed.is_set()


@pytest.mark.parametrize("then", [[HANG], [0.05, RESET], [0.05, CLOSE]])
async def test_release_drops_a_body_that_does_not_end(then: list[Step]) -> None:
    async with engine([KEEP_HEAD, chunked(b"data: 1\n\n"), *then]) as (running, upstream):
        exchange = await opened(upstream, running.url)
        await exchange.read()
        exchange.release()
        await asyncio.sleep(0.4)
        running.script = lambda seen: WHOLE
        assert await whole(await opened(upstream, running.url)) == b"data: 1\n\n"
    assert running.connections == 2


async def test_a_body_that_pours_on_is_not_read_for_ever() -> None:
    piece: list[Step] = [chunked(b"x" * 10_000), 0.01]
    pouring: list[Step] = [KEEP_HEAD, *piece * 500]
    async with engine(pouring) as (running, upstream):
        exchange = await opened(upstream, running.url)
        await exchange.read()
        async with asyncio.timeout(1):
            exchange.release()
            await running.calls[0].closed.wait()


async def test_closing_tells_the_engine_at_once() -> None:
    async with engine([HEAD, HANG]) as (running, upstream):
        exchange = await opened(upstream, running.url)
        exchange.close()
        async with asyncio.timeout(0.5):
            await running.calls[0].closed.wait()


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([RESET], EngineBroke),
        ([CLOSE], EngineBroke),
        ([b"SSH-2.0-OpenSSH_9.6\r\n", CLOSE], EngineBroke),
        ([b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", CLOSE], EngineBroke),
        ([b"HTTP/1.1 200 OK\r\nbomb: " + b"x" * 100_000 + b"\r\n\r\n", CLOSE], EngineBroke),
        ([b"HTTP/1.1 200 OK\r\n" + b"bomb: x\r\n" * 200_000, CLOSE], EngineBroke),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", CLOSE], EngineBroke),
        ([HEAD, RESET], EngineBroke),
        ([HEAD, CLOSE], EngineBroke),
        ([HEAD, chunked(b"a"), CLOSE], EngineBroke),
        ([HEAD, b"not a length\r\n", CLOSE], EngineBroke),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", CLOSE], EngineBroke),
    ],
)
async def test_a_broken_answer_is_a_broken_engine(steps: list[Step], error: type[EngineError]) -> None:
    async with engine(steps) as (running, upstream):
        with pytest.raises(error) as caught:
            await whole(await opened(upstream, running.url))
        port = running.url.rpartition(":")[2]
    assert "127.0.0.1" not in caught.value.message
    assert port not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.retryable


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://nowhere.invalid:80"])
async def test_no_connection_is_unreachable(url: str) -> None:
    async with Upstream() as upstream:
        with pytest.raises(EngineUnreachable) as caught:
            await opened(upstream, url)
        with pytest.raises(EngineUnreachable):
            await upstream.get(URL(url), api_key=None, limit_s=1)
    assert caught.value.message == "No connection to the engine could be made."


async def test_a_connection_that_is_not_accepted_is_a_timeout_of_its_stage() -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # fill the queue, so that the kernel answers no further
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        await asyncio.sleep(0.05)
        async with Upstream() as upstream:
            with pytest.raises(EngineTimeout) as caught:
                await opened(upstream, f"http://127.0.0.1:{full.getsockname()[1]}", connect_s=0.3)
    assert (caught.value.stage, caught.value.status) == ("connect", 504)
    assert "0.3 s" in caught.value.message


@pytest.mark.parametrize("known", [True, False])
async def test_a_connection_that_took_too_long_for_a_loop_that_stood_still_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    loop = asyncio.get_running_loop()
    connect, tries = loop.sock_connect, 0

    async def stands_still(*place: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            time.sleep(0.8)  # noqa: ASYNC251 - the loop stands still
            await asyncio.sleep(0.05)
        await connect(*place)

    monkeypatch.setattr(loop, "sock_connect", stands_still)
    async with ScriptedEngine().running() as running, LoopLag(tick_s=0.01).ticking() as lag:
        running.script = lambda seen: WHOLE
        async with Upstream(lag.stood_s) if known else Upstream() as upstream:
            if known:
                assert await whole(await opened(upstream, running.url, connect_s=0.3)) == b"data: 1\n\n"
            else:
                with pytest.raises(EngineTimeout):
                    await opened(upstream, running.url, connect_s=0.3)
    assert (tries, len(running.calls)) == ((2, 1) if known else (1, 0))


async def test_a_probe_that_is_not_answered_gives_up() -> None:
    async with engine(WHOLE) as (running, upstream):
        running.answers["/health"] = [HANG]
        with pytest.raises(EngineTimeout, match="did not answer in time"):
            await upstream.get(URL(running.url) / "health", api_key=None, limit_s=0.2)


async def test_redirects_are_answers_not_orders() -> None:
    moved: list[Step] = [b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 2\r\n\r\nhi", CLOSE]
    async with engine(moved) as (running, upstream):
        exchange = await opened(upstream, running.url)
        assert (exchange.status, await exchange.read_error()) == (307, b"hi")
        running.answers["/health"] = list(moved)
        status, _ = await upstream.get(URL(running.url) / "health", api_key=None, limit_s=1)
    assert status == 307
    assert {seen.path for seen in running.seen} == {"/completion", "/health"}


async def test_an_error_s_body_is_read_whole_up_to_a_bound() -> None:
    pieces: list[Step] = [chunked(b"a" * 1000), 0.03, chunked(b"b" * 1000), 0.03]
    head = HEAD.replace(b"200 OK", b"500 Oops")
    async with engine([head, *pieces, b"0\r\n\r\n", CLOSE]) as (running, upstream):
        assert await (await opened(upstream, running.url)).read_error() == b"a" * 1000 + b"b" * 1000
        running.script = lambda seen: [head, *[chunked(b"x" * 10_000)] * 50, HANG]
        exchange = await opened(upstream, running.url)
        assert await exchange.read_error() == b"x" * 65536
        exchange.close()
        running.answers["/props"] = [HEAD, *[chunked(b"x" * 10_000)] * 50, HANG]
        status, body = await upstream.get(URL(running.url) / "props", api_key=None, limit_s=2, max_bytes=123_456)
        assert (status, len(body)) == (200, 123_456)


async def test_compressed_and_cookie_answers_change_nothing() -> None:
    baked = KEEP_HEAD.replace(b"content-type", b"set-cookie: a=b\r\ncontent-encoding: gzip\r\ncontent-type")
    async with engine([baked, chunked(b"plain"), b"0\r\n\r\n", KEEP]) as (running, upstream):
        for _ in range(2):
            assert await whole(await opened(upstream, running.url)) == b"plain"
    assert "cookie" not in running.calls[1].headers


async def test_nothing_is_read_ahead_of_a_slow_reader() -> None:
    pouring: list[Step] = [HEAD, *[chunked(b"x" * 65_536)] * 1000, HANG]
    async with engine(pouring) as (running, upstream):
        exchange = await opened(upstream, running.url)
        await asyncio.sleep(0.3)
        first = running.sent
        await asyncio.sleep(0.3)
        assert running.sent == first, "it is still being read"
        exchange.close()
    assert first < 12 * 2**20  # the sockets' buffers, and little more


NOW = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("99999999999", 86_400),
        ("Sat, 14 Mar 2026 15:09:33 GMT", 7.0),
        ("Sat, 14 Mar 2026 15:09:00 GMT", 0.0),
        ("Sat, 14 Mar 2026 15:09:33", None),
        ("", None),
        ("-3", None),
        ("٣", None),
        ("soon", None),
    ],
)
def test_retry_after(value: str, wait_s: float | None) -> None:
    assert retry_after_s(value, NOW) == wait_s
