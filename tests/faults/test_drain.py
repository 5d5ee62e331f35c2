"""`interlock serve` is told to go down under load: nothing that can be finished is cut, and what is cut is told so."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults.client import Answer, RawClient, ask, chat, connected, request
from faults.engine import process
from support.gateway import tiny_model
from support.process import ServeProcess, log_of, records, started

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
SLACK = 5  # the machine is shared: bounds hold on an idle one
STREAMS = 200
TOKEN_S = 0.1
STALLED = "[[tokens=4000]][[chaos:fat kb=64]]"


@dataclass(slots=True)
class Gateway:
    """A gateway process in front of engines in processes of their own."""

    serving: ServeProcess
    folder: Path
    signalled_s: float = 0.0

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.signalled_s = time.monotonic()
        self.serving.child.send_signal(number)

    async def ended(self, limit_s: float = 60.0) -> tuple[int, float]:
        """Its exit code, and the seconds since the last signal."""
        code = await asyncio.to_thread(self.serving.child.wait, limit_s)
        return code, time.monotonic() - self.signalled_s

    def outcomes(self) -> list[str]:
        """The words of the access log."""
        return [str(each["outcome"]) for each in records(log_of(self.folder)) if each["event"] == "request"]

    async def status(self, path: str, url: str | None = None) -> int | None:
        """What a new connection is told."""
        answer = Answer()
        async with connected(url or self.serving.url) as client:
            await client.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await client.read(answer)
        return answer.status


@contextlib.asynccontextmanager
async def gateway(folder: Path, *, engines: int = 1, token_s: float = TOKEN_S, **changed: Any) -> AsyncIterator[Gateway]:
    """`changed` are sections of the settings; `engine` is of each engine."""
    each = {"kind": "llamacpp", **changed.pop("engine", {})}
    async with contextlib.AsyncExitStack() as stack:
        options = [("--name", name, "--token-s", str(token_s)) for name in "abcdefgh"[:engines]]
        found = [await stack.enter_async_context(process(*option)) for option in options]
        told = [{"id": name, "url": place["url"], **each} for name, place in zip("abcdefgh", found, strict=False)]
        models = [{"name": "m", "source": str(tiny_model()), "engines": told}]
        sections = {"limits": {"render_workers": 0}, "timeouts": {"connect_s": 20}}  # 200 connections at once on a busy machine
        serving = stack.enter_context(started({**sections, **changed, "models": models}, folder))
        yield Gateway(serving, folder)


class Stream:
    """A request whose answer has begun."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.answer = Answer()

    async def begin(self, text: str, **fields: Any) -> None:
        await self.client.send(request(chat(text, **fields)))
        await self.client.read(self.answer, until=b"data: ")

    async def end(self) -> Answer:
        with contextlib.suppress(ConnectionError):
            await self.client.read(self.answer)
        return self.answer


async def begun(stack: contextlib.AsyncExitStack, place: Gateway, count: int, text: str) -> list[Stream]:
    """So many streams, each with its first piece."""
    streams = [Stream(await stack.enter_async_context(connected(place.serving.url))) for _ in range(count)]
    async with asyncio.timeout(40):
        await asyncio.gather(*(stream.begin(f"{text} {number}") for number, stream in enumerate(streams)))
    assert [stream.answer.status for stream in streams] == [200] * count
    return streams


async def all_ready(place: Gateway, within_s: float = 20.0) -> None:
    """Returns when the gateway would send to each of its engines."""
    async with asyncio.timeout(within_s), httpx.AsyncClient(base_url=place.serving.admin_url, trust_env=False) as client:
        while not all((await client.get("/ready")).json()["engines"]["m"].values()):
            await asyncio.sleep(0.02)


def refused(answer: Answer) -> bool:
    """Whether it was told in full that the gateway goes down, and to go elsewhere."""
    head = answer.head.lower()
    whole = answer.complete and answer.status == 503 and "\r\nretry-after: 1" in head and "\r\nconnection: close" in head
    return whole and answer.error is not None and answer.error["code"] == "draining"


def cut(answer: Answer) -> bool:
    """Whether a stream that had begun ended with the marked event."""
    answer.check()
    return answer.error is not None and answer.error["code"] == "draining"


async def test_no_stream_is_cut_under_the_limit(tmp_path: Path) -> None:
    async with gateway(tmp_path, server={"drain_s": 60}) as place, contextlib.AsyncExitStack() as stack:
        streams = await begun(stack, place, STREAMS, "[[tokens=60]]")
        idle = await stack.enter_async_context(connected(place.serving.url))
        place.signal()
        while await place.status("/ready") != 503:
            assert time.monotonic() - place.signalled_s < SLACK
        assert await place.status("/health") == 200
        assert await place.status("/ready", place.serving.admin_url) == 503
        assert refused(await ask(place.serving.url, chat("late")))
        await idle.send(request(chat("late, on a connection that stood before")))
        late = Answer()
        await idle.read(late)
        assert refused(late)
        assert await idle.reader.read() == b""
        assert await place.status("/v1/models") == 503
        answers = await asyncio.gather(*(stream.end() for stream in streams))
        code, took_s = await place.ended()
    assert sum(1 for answer in answers if not answer.done) == 0
    assert code == 0
    assert took_s < 60
    assert sorted(place.outcomes()) == ["drained"] * 2 + ["ok"] * STREAMS
    print(f"{STREAMS} streams drained, 0 cut, exit {took_s:.2f} s after the signal")


async def test_what_is_not_over_at_the_limit_is_marked(tmp_path: Path) -> None:
    async with gateway(tmp_path, server={"drain_s": 1}) as place, contextlib.AsyncExitStack() as stack:
        streams = await begun(stack, place, STREAMS, "[[tokens=3000]]")
        waiting = [
            asyncio.create_task(ask(place.serving.url, chat(f"{text} [[tokens=3000]]", stream=stream), limit_s=40))
            for stream, text in ((False, "whole"), (True, "[[chaos:hang_before_first]]"))
        ]
        await asyncio.sleep(0.5)
        place.signal()
        answers = await asyncio.gather(*(stream.end() for stream in streams))
        early = await asyncio.gather(*waiting)
        code, took_s = await place.ended()
    assert [bytes(answer.raw[-300:]) for answer in answers if not cut(answer)] == []
    assert [refused(answer) for answer in early] == [True, True]
    assert code == 0
    assert 1 <= took_s <= 1 + 2 * SLACK
    assert place.outcomes() == ["drained"] * (STREAMS + 2)
    print(f"{STREAMS} streams cut and marked, exit {took_s:.2f} s after the signal, limit 1 s")


async def test_a_client_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    async with gateway(tmp_path, server={"drain_s": 1}, token_s=0.0) as place, contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(place.serving.url, receive_bytes=4096))
        await client.send(request(chat(STALLED)))
        await client.read(Answer(), until=b"data: ")
        await asyncio.sleep(1)
        place.signal()
        code, took_s = await place.ended()
    assert code == 0
    assert took_s <= 1 + 2 * SLACK
    assert place.outcomes() == ["drained"]
    print(f"a stalled client: exit {took_s:.2f} s after the signal, limit 1 s")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_without_streams_it_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    rendering = {"render_workers": 2}
    async with gateway(tmp_path, server={"drain_s": 60}, limits=rendering) as place, contextlib.AsyncExitStack() as stack:
        idle = await stack.enter_async_context(connected(place.serving.url))
        await idle.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await idle.read(Answer())
        place.signal(number)
        code, took_s = await place.ended()
        assert await idle.reader.read() == b""
    assert code == 0
    assert took_s <= 1 * SLACK
    print(f"no streams: exit {took_s:.2f} s after the signal")


async def test_a_second_signal_cuts_now(tmp_path: Path) -> None:
    async with gateway(tmp_path, server={"drain_s": 60, "drain_grace_s": 30}) as place, contextlib.AsyncExitStack() as stack:
        streams = await begun(stack, place, STREAMS, "[[tokens=3000]]")
        place.signal()
        await asyncio.sleep(0.5)
        assert place.serving.child.poll() is None
        place.signal(signal.SIGINT)
        answers = await asyncio.gather(*(stream.end() for stream in streams))
        code, took_s = await place.ended()
    assert code == 1
    assert took_s <= 1 * SLACK
    assert [answer for answer in answers if answer.done] == []
    assert place.outcomes() == ["drained"] * STREAMS
    marked = sum(1 for answer in answers if answer.complete and cut(answer))
    print(f"second signal: exit {took_s:.2f} s after it, {marked} of {STREAMS} marked")


async def test_new_requests_are_taken_during_the_grace(tmp_path: Path) -> None:
    server = {"drain_s": 60, "drain_grace_s": 3}
    async with gateway(tmp_path, server=server, token_s=0.0) as place:
        place.signal(signal.SIGINT)
        while await place.status("/ready") != 503:
            assert time.monotonic() - place.signalled_s < SLACK
        taken = await ask(place.serving.url, chat("early"))
        code, took_s = await place.ended()
    assert taken.done
    assert "\r\nconnection: close" in taken.head.lower()
    assert code == 0
    assert 3 <= took_s <= 3 + 1 * SLACK


async def test_queued_requests_go_on_or_are_told(tmp_path: Path) -> None:
    engine = {"most_running": 1}
    for drain_s, told in ((60, "done"), (1, "refused")):
        async with gateway(tmp_path, server={"drain_s": drain_s}, engine=engine) as place, contextlib.AsyncExitStack() as stack:
            await begun(stack, place, 1, "[[tokens=25]]")
            queued = [asyncio.create_task(ask(place.serving.url, chat(f"{number} [[tokens=2]]"))) for number in range(3)]
            await asyncio.sleep(0.5)
            place.signal()
            answers = await asyncio.gather(*queued)
            code, _ = await place.ended()
        assert [answer.done if told == "done" else refused(answer) for answer in answers] == [True] * 3, told
        assert code == 0


async def test_a_running_answer_is_gone_on_with_during_the_drain(tmp_path: Path) -> None:
    first_a = {"policy": "round_robin"}
    async with (
        gateway(tmp_path, server={"drain_s": 60}, routing=first_a, engines=2) as place,
        contextlib.AsyncExitStack() as stack,
    ):
        await all_ready(place)
        (stream,) = await begun(stack, place, 1, "[[ascii]][[tokens=30]][[chaos:reset_mid_stream after=15 only=a]]")
        place.signal()
        answer = await stream.end()
        code, _ = await place.ended()
    assert answer.done, answer.error
    assert code == 0
    (record,) = [each for each in records(log_of(tmp_path)) if each["event"] == "request"]
    assert (record["attempts"], record["engine"]) == (2, "b")
