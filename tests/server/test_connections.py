"""What one client's connection and one engine's see over many requests, and what is left when they are over."""

import asyncio
import contextlib
import gc
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from faults.wire import CLOSES_AT_ONCE
from structlog.testing import capture_logs
from support.gateway import HELLO, IN_FLIGHT, PAIR, Served, events_of, outcome, sample, scripted
from support.scripted_engine import (
    CLOSE,
    HANG,
    HEAD,
    KEEP,
    RESET,
    ScriptedEngine,
    Seen,
    Step,
    chat_chunk,
    chunked,
    completion,
    event,
    llama_end,
    llama_token,
)

from gateway.server.protocol import BoundedHttp

KEPT = [HEAD.replace(b"connection: close\r\n", b""), *completion("Hi")[1:-1], KEEP]


def raw(**body: Any) -> bytes:
    content = json.dumps({**HELLO, **body}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next answer on a connection: status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split()[1])
    if b"transfer-encoding: chunked" not in head:
        return status, await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, body


async def connected(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))


async def test_many_requests_on_one_connection() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: KEPT
        reader, writer = await connected(served)
        for number in range(50):
            writer.write(raw(stream=number % 2 == 1))
            status, body = await asyncio.wait_for(answer(reader), 5)
            assert status == 200
            assert body.endswith(b"data: [DONE]\n\n" if number % 2 else b"}")
        writer.close()
        metrics = await served.metrics()
    assert metrics[outcome("ok")] == 50
    assert len(engine.calls) == 50


async def test_pipelined_requests_are_answered_in_turn() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(str(seen.body["seed"]), pause_s=0.02)
        reader, writer = await connected(served)
        writer.write(b"".join(raw(stream=number % 2 == 1, seed=number) for number in range(5)))
        bodies = [(await asyncio.wait_for(answer(reader), 5))[1] for _ in range(5)]
        writer.close()
        await served.settled(outcome("ok"), 5)
    said = [
        "".join(choice["delta"].get("content") or "" for chunk in events_of(body)[:-1] for choice in chunk["choices"])
        if body.startswith(b"data:")
        else json.loads(body)["choices"][0]["message"]["content"]
        for body in bodies
    ]
    assert said == ["0", "1", "2", "3", "4"]


async def test_an_engine_s_connection_is_used_again() -> None:
    async with scripted() as (engine, served):
        await asyncio.sleep(0.05)
        probes = engine.connections
        engine.script = lambda seen: KEPT
        for _ in range(10):
            assert (await served.chat()).status_code == 200
            assert (await served.stream())[-1] == "[DONE]"
    assert len(engine.calls) == 20
    assert engine.connections - probes <= 1


@pytest.mark.parametrize("place", ["encoder", "call", "chunk", "end"])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_bug_of_ours_is_told_logged_and_costs_one_request(monkeypatch: pytest.MonkeyPatch, place: str, n: int) -> None:
    target = {
        "encoder": "gateway.dialects.openai_chat.OpenAIChat.encoder",
        "call": "engines.llamacpp.LlamaCpp.call",
        "chunk": "engines.llamacpp.LlamaCppReader.chunk",
        "end": "gateway.dialects.openai_whole.WholeEncoder.end",
    }[place]

    def bug(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("a bug")

    async with scripted() as (_engine, served):
        reader, writer = await connected(served)
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(target, bug)
            writer.write(raw(n=n))
            status, body = await asyncio.wait_for(answer(reader), 5)
            for _ in range(50):
                if any(record["event"] == "request" for record in logs):
                    break
                await asyncio.sleep(0.01)
        writer.write(raw())
        later, _ = await asyncio.wait_for(answer(reader), 5)
        writer.close()
        await served.settled(outcome("ok"), 1)
        metrics = await served.metrics()
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (500, "internal_error", "server_error")
    assert "ZeroDivisionError" not in error["message"]
    assert later == 200
    (logged,) = [record for record in logs if record["event"] == "request failed"]
    assert logged["exc_info"]
    assert logged["request_id"]
    assert metrics[sample("interlock_request_failures_total", model="m", outcome="upstream_error", reason="internal")] == 1
    assert metrics[IN_FLIGHT] == 0


async def test_a_client_that_does_not_read_stops_the_engine() -> None:
    big = "x" * 8_000
    async with scripted() as (engine, served):
        tokens = [event(llama_token(big, at)) for at in range(1, 8_000)]  # 64 MB
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(8_000)), b"0\r\n\r\n", CLOSE]
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(served.url.rpartition(":")[2])))
            await loop.sock_sendall(client, raw(stream=True))
            sent = await settled(engine)
            assert sent < 16 * 2**20, "the sockets between hold no more than some megabytes"
            got = 0
            while got < 4 * 2**20:
                got += len(await loop.sock_recv(client, 1 << 16))
            more = await settled(engine)
            assert sent < more <= sent + 10 * 2**20, "it goes on as the client reads, and stops again"
        async with asyncio.timeout(2):
            await engine.calls[0].closed.wait()
        await served.settled(outcome("client_gone"), 1)


async def settled(engine: ScriptedEngine) -> int:
    """What the engine has sent once it gets rid of no more."""
    before = -1
    while engine.sent != before:
        before = engine.sent
        await asyncio.sleep(0.3)
    return before


async def test_a_client_that_never_reads_on_holds_a_request_no_longer_than_its_total() -> None:
    big = "x" * 200_000
    async with scripted(timeouts={"total_s": 0.8}) as (engine, served):
        tokens = [event(llama_token(big, at)) for at in range(1, 100)]
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(99)), b"0\r\n\r\n", CLOSE]
        _, writer = await connected(served)
        writer.write(raw(stream=True))
        stalled = sample("interlock_request_failures_total", model="m", outcome="client_error", reason="client_stalled")
        await served.settled(stalled, 1, within_s=6)
        await served.settled(IN_FLIGHT, 0)
        assert (await served.metrics())[sample("interlock_client_stall_seconds_sum", **PAIR)] > 0.3
        writer.close()


async def test_an_end_without_a_finish_reason_is_no_answer() -> None:
    done = chunked(b"data: [DONE]\n\n")
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [HEAD, event(chat_chunk({"content": "a"})), done, b"0\r\n\r\n", CLOSE]
        whole = await served.chat()
        streamed = await served.stream()
        engine.script = lambda seen: [HEAD, event(chat_chunk({"content": "a"}, "stop")), done, b"0\r\n\r\n", CLOSE]
        one_of_two = await served.chat(n=2)
    assert (whole.status_code, one_of_two.status_code) == (502, 502)
    assert whole.json()["error"]["code"] == "engine_broke"
    assert streamed[-1]["error"]["code"] == "engine_broke"


async def test_nothing_is_left_of_two_hundred_requests_of_all_kinds() -> None:
    scripts: Sequence[list[Step]] = [
        list(KEPT),
        completion("a", "b"),
        [RESET],
        [HEAD, event(llama_token("a", 1)), RESET],
        [HEAD, event(llama_token("a", 1)), HANG],
        [HANG],
        [b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nhello", CLOSE],
        [HEAD, b"garbage\r\n", CLOSE],
    ]

    def script(seen: Seen) -> Sequence[Step]:
        return scripts[int(seen.body["seed"]) % len(scripts)]

    limits = {"headers_s": 0.3, "first_token_s": 0.3, "between_tokens_s": 0.3}
    async with scripted(timeouts=limits) as (engine, served):
        engine.script = script
        await batch(served, 8)
        await asyncio.sleep(0.3)
        tasks, files, _ = left()
        for _ in range(8):
            await batch(served, 24)
        async with asyncio.timeout(30):  # an idle connection is kept for 4 s
            while (now := left())[0] > tasks or now[1] > files or now[2] > PROBED:
                await asyncio.sleep(0.1)
        metrics = await served.metrics()
    assert metrics[IN_FLIGHT] == 0
    assert sum(value for name, value in metrics.items() if name.startswith("interlock_requests_total[")) == 200


async def batch(served: Served, count: int) -> None:
    """Requests at once, every third of which leaves, on connections of their own."""

    async def one(number: int) -> None:
        limit_s = 0.1 if number % 3 == 2 else 10
        with contextlib.suppress(httpx.HTTPError):
            # Loopback without TLS: its context would cost 50 ms each.
            async with httpx.AsyncClient(
                base_url=served.url,
                timeout=limit_s,
                trust_env=False,
                verify=False,  # noqa: S501
            ) as client:
                await client.post("/v1/chat/completions", json={**HELLO, "seed": number, "stream": number % 2 == 1})

    await asyncio.gather(*(one(number) for number in range(count)))


PROBED = 8
"""How many connections to the engine its probes may keep: they ask several things of it within the time that one is kept."""


def left() -> tuple[int, int, int]:
    """Tasks and open files now, but for those of connections to the engine, which have both their ends here; and how many of
    these there are."""
    gc.collect()
    tasks = [task.get_coro() for task in asyncio.all_tasks()]
    kept = sum(getattr(each, "cr_code", None) is ScriptedEngine._accept.__code__ for each in tasks)
    return len(tasks) - kept, len(os.listdir("/proc/self/fd")) - 2 * kept, kept


async def test_the_failures_of_a_repeated_answer_are_in_the_metrics() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}]
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    async with scripted(tools="constrained", on_schema_miss="retry") as (engine, served):
        engine.script = lambda seen: completion(call % ("{}" if len(engine.calls) == 1 else '{"a": 1}'))
        assert (await served.chat(tools=tools)).status_code == 200
        metrics = await served.metrics()
    labels = {**PAIR, "format": "hermes"}
    assert metrics[sample("interlock_parse_failures_total", kind="schema_mismatch", **labels)] == 1
    assert metrics[sample("interlock_tool_calls_total", **labels)] == 2  # the one that was thrown away was made as well


async def test_a_body_that_comes_too_slowly_is_told_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.stream.BODY_S", 0.2)
    async with scripted() as (engine, served):
        reader, writer = await connected(served)
        writer.write(raw()[:-10])
        status, body = await asyncio.wait_for(answer(reader), 3)
        assert await asyncio.wait_for(reader.read(), 3) == b""
        writer.close()
        await served.settled(outcome("client_error", engine="none", model="unknown"), 1)
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
    assert engine.calls == []


async def test_a_client_that_leaves_in_its_body_is_gone() -> None:
    async with scripted() as (engine, served):
        _, writer = await connected(served)
        writer.write(raw()[:-10])
        await asyncio.sleep(0.1)
        writer.close()
        await served.settled(outcome("client_gone", engine="none", model="unknown"), 1)
    assert engine.calls == []


async def test_a_choice_that_nobody_asked_for_is_no_answer() -> None:
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [HEAD, event(chat_chunk({"content": "a"}, index=3)), HANG]
        response = await served.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_broke")


async def test_an_engine_that_goes_between_two_tries_is_told() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}]
    async with scripted(tools="constrained", on_schema_miss="retry") as (engine, served):

        def script(_: Seen) -> Sequence[Step]:
            served.gateway.registry.set_ready("e", False)
            return completion('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')

        engine.script = script
        engine.up = False
        response = await served.chat(tools=tools)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_engine")
    assert response.headers["retry-after"] == "1"


async def test_a_cold_route_s_wrong_method_is_told_in_the_dialect_s_shape() -> None:
    async with scripted() as (_engine, served):
        wrong = await served.client.post("/v1/models")
        both = [await served.client.get(path) for path in ("/nowhere", "/v1/models/")]
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert {each.json()["error"]["type"] for each in both} == {"invalid_request_error"}


async def test_an_answer_that_is_kept_is_bounded_and_one_that_streams_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.attempt.MAX_WHOLE_BYTES", 1 << 20)
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(*["x" * 1000] * 1200)
        whole = await served.chat()
        streamed = await served.stream()
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "engine_broke")
    assert "larger than 1048576 bytes" in whole.json()["error"]["message"]
    assert streamed[-1] == "[DONE]"


HEAD_LINE = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD_LINE + b"x: " + b"y" * 70_000 + b"\r\n\r\n",
        HEAD_LINE + b"x: " + b"y" * 1_000_000,
        HEAD_LINE + b"".join(b"x%d: y\r\n" % n for n in range(20_000)),
        b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"y" * 200_000,
    ],
    ids=["one line", "no end", "many lines", "path", "nothing known"],
)
async def test_headers_are_bounded(sent: bytes) -> None:
    async with scripted() as (engine, served):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(sent)
        answer = b"HTTP/1.1 431 "
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):  # closed while we were still sending
                answer = await reader.read()
        writer.close()
        alive = await served.client.get("/health")
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert alive.status_code == 200
    assert engine.calls == []


async def test_heads_of_many_requests_on_one_connection_do_not_add_up() -> None:
    async with scripted() as (_, served):
        headers = {"x-long": "y" * 40_000}
        statuses = [(await served.client.get("/health", headers=headers)).status_code for _ in range(5)]
    assert statuses == [200] * 5


@pytest.mark.parametrize("size", [70_000, 140_000, 300_000, 2_000_000])
async def test_large_bodies_on_one_connection_are_no_heads(size: int) -> None:
    async with scripted() as (engine, served):
        body = {**HELLO, "metadata": {"a": "z" * size}}
        statuses = [(await served.client.post("/v1/chat/completions", json=body)).status_code for _ in range(6)]
    assert statuses == [200] * 6
    assert len(engine.calls) == 6


async def test_two_choices_that_wait_for_the_client_are_one_stall() -> None:
    big = "x" * 200_000
    async with scripted() as (engine, served):
        tokens = [event(llama_token(big, at)) for at in range(1, 60)]
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(59)), b"0\r\n\r\n", CLOSE]
        began = asyncio.get_running_loop().time()
        async with served.client.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True, "n": 2}) as response:
            pieces = response.aiter_raw()
            await anext(pieces)
            await asyncio.sleep(1.0)
            async for _ in pieces:
                pass
        took_s = asyncio.get_running_loop().time() - began
        metrics = await served.metrics()
    assert 0.3 < metrics[sample("interlock_client_stall_seconds_sum", **PAIR)] <= took_s


@pytest.mark.parametrize("reset", [False, True])
async def test_nothing_is_kept_of_a_connection_that_its_client_ended_between_two_requests(reset: bool) -> None:
    async with scripted() as (_, served):
        for _ in range(20):
            reader, writer = await connected(served)
            writer.write(raw(model="unknown"))
            assert b"404" in await reader.readuntil(b"\r\n")
            if reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_AT_ONCE)
                writer.transport.abort()
            writer.close()
        async with asyncio.timeout(5):
            while sum(type(each) is BoundedHttp for each in gc.get_objects()) > 2:
                await asyncio.sleep(0.02)
                gc.collect()
