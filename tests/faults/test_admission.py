"""Who waits, who is sent away and what it costs, over sockets: rows C2 (queued), C11, E23, E28 and S18 of the matrix of faults.

Bounds in seconds are the rows' own, several times over: the machine that runs this is shared.
"""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from faults.client import LIMIT_S, Answer, RawClient, ask, chat, connected
from faults.engine import FaultEngine
from faults.leaks import NoLeaks
from faults.place import QUICK, Fleet, fleet
from faults.saying import text_of, unbroken
from faults.speech import Kind
from support.gateway import sample, tiny_model
from support.process import ServeProcess, log_of, records, serve_process

pytestmark = pytest.mark.faults

SLACK = 5
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
DEPTH = sample("interlock_queue_depth", model="m", priority="0")
IN_FLIGHT_A = sample("interlock_inflight_requests", model="m", engine="a")
HELD = "[[tokens=40]][[chaos:slow s=0.05]] held"


def retry_after(answer: Answer) -> int:
    """The seconds that it was told to stay away."""
    return int(answer.head.lower().partition("\r\nretry-after: ")[2].partition("\r\n")[0])


@contextlib.asynccontextmanager
async def held(place: Fleet, text: str = HELD) -> AsyncIterator[tuple[RawClient, Answer]]:
    """A stream that has begun."""
    answer = Answer()
    async with connected(place.served.url) as client:
        await client.send(place.request(text))
        await client.read(answer, until=b"data: ")
        yield client, answer


async def ended(place: Fleet, client: RawClient, answer: Answer) -> bool:
    """Reads the rest of the first: whether it is the whole answer."""
    async with asyncio.timeout(LIMIT_S):
        await client.read(answer)
    answer.check()
    return answer.done and answer.text == text_of(unbroken(place.seen[0].prompt))


@pytest.mark.parametrize("kind", KINDS)
async def test_c2_clients_that_leave_while_they_wait_reach_no_engine(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, 1, engine={"most_running": 1}) as place, held(place) as (client, answer):
        async with contextlib.AsyncExitStack() as stack:
            waiting = [await stack.enter_async_context(connected(place.served.url)) for _ in range(20)]
            for number, each in enumerate(waiting):
                await each.send(place.request(f"waits {number}", stream=number % 3 > 0))
            await place.served.settled(DEPTH, 20)
            for number, each in enumerate(waiting):
                each.leave(reset=number % 2 == 0)
            await place.served.settled(DEPTH, 0)
        assert len(place.seen) == 1
        assert await ended(place, client, answer)
        assert place.whole(await place.ask("after"))
        assert len(place.seen) == 2
        gone = [record for record in no_leaks.records if record["outcome"] == "client_gone"]
        assert [record["reason"] for record in gone] == ["waiting"] * 20
        assert {record["engine"] for record in gone} == {"none"}


@pytest.mark.parametrize("kind", KINDS)
async def test_no_burst_passes_the_bound_of_an_engine_and_all_are_answered(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, 2, engine={"most_running": 2}) as place:
        texts = [f"[[tokens=6]][[chaos:slow s=0.01]] {number}" for number in range(40)]
        answers = await asyncio.gather(*(super(Fleet, place).ask(text) for text in texts))
        assert all(answer.done for answer in answers), [answer.error for answer in answers if answer.error]
        assert {engine.most_running for engine in place.engines.values()} == {2}
        assert len(place.seen) == 40


@pytest.mark.parametrize("kind", KINDS)
async def test_what_an_engine_that_died_was_at_waits_for_room_on_the_other(no_leaks: NoLeaks, kind: Kind) -> None:
    """One of those that wait leaves, and costs nothing; a request that is new comes after them."""
    async with fleet(no_leaks, kind, 2, engine={"most_running": 4}) as place:
        a, b = place.engines["a"], place.engines["b"]
        async with contextlib.AsyncExitStack() as stack:
            texts = [f"[[tokens=40]][[chaos:slow s=0.05]] {number}" for number in range(8)]
            clients = [await stack.enter_async_context(connected(place.served.url)) for _ in texts]
            answers = [Answer() for _ in texts]
            for client, answer, text in zip(clients, answers, texts, strict=True):
                await client.send(place.request(text))
                await client.read(answer, until=b"data: ")
            assert (a.running, b.running) == (4, 4)
            await a.fall()
            await place.served.settled(IN_FLIGHT_A, 0)
            clients[0].leave(reset=True)  # the first of every two is on a
            new = asyncio.create_task(super(Fleet, place).ask("new"))
            async with asyncio.timeout(LIMIT_S):
                for number in range(1, 8):
                    await clients[number].read(answers[number])
            assert (await new).done
        assert [answer.error for answer in answers[1:]] == [None] * 7
        assert all(answer.done for answer in answers[1:])
        assert b.most_running == 4
        assert len(b.seen) == 4 + 3 + 1
        assert min(b.seen, key=lambda seen: len(seen.prompt)) is b.seen[-1], "what is new comes last"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_answers_of_one_request_run_as_there_is_room_beside_those_of_others(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, 1, engine={"most_running": 2}) as place, held(place) as (client, answer):
        many = asyncio.create_task(super(Fleet, place).ask("[[tokens=4]][[chaos:slow s=0.02]] many", n=8, stream=False))
        async with asyncio.timeout(LIMIT_S):
            while len(place.seen) < 2:  # it has begun, though there is room for one of its answers only
                await asyncio.sleep(0.01)
        short = await super(Fleet, place).ask("[[tokens=2]] short")
        assert short.done
        assert not many.done(), "it was over too soon to tell"
        assert (await many).status == 200
        assert place.engine.most_running == 2
        assert len(place.seen) == 10
        assert await ended(place, client, answer)


async def test_a_full_queue_is_told_with_a_time_that_follows_its_pace(no_leaks: NoLeaks) -> None:
    limits = {"queue_requests": 4, "queue_wait_s": 0.5}
    async with (
        fleet(no_leaks, "llamacpp", 1, engine={"most_running": 1}, limits=limits) as place,
        held(place) as (client, answer),
    ):
        others = [asyncio.create_task(super(Fleet, place).ask(f"waits {number}")) for number in range(4)]
        await place.served.settled(DEPTH, 4)
        full = await place.ask("one too many")
        assert (full.status, full.error and full.error["code"]) == (429, "queue_full")
        assert 1 <= retry_after(full) <= 30
        late = await asyncio.gather(*others)
        assert {(each.status, each.error and each.error["code"]) for each in late} == {(503, "queue_timeout")}
        assert all(1 <= retry_after(each) <= 30 for each in late)
        assert len(place.seen) == 1
        assert await ended(place, client, answer)


async def test_e28_with_all_engines_down_the_refusal_is_quick_and_so_is_the_recovery(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", 2) as place:
        for engine in place.engines.values():
            await engine.fall()
        registry, loop = place.served.gateway.registry, asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_S):
            while not registry.down("m"):
                await registry.changed()
        took_s = []
        for number in range(100):
            began_s = loop.time()
            answer = await place.ask(str(number))
            took_s.append(loop.time() - began_s)
            assert (answer.status, answer.error and answer.error["code"], retry_after(answer)) == (503, "no_engine", 1)
        assert sorted(took_s)[98] < 0.05 * SLACK
        assert place.seen == []
        began_s = loop.time()
        for engine in place.engines.values():
            await engine.rise()
        while not (answer := await place.ask("again")).done:
            await asyncio.sleep(0.05)
        assert loop.time() - began_s < 2.0 + 1.0


async def test_e28_a_gateway_that_may_wait_answers_when_an_engine_is_back(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", 1, limits={"down_wait_s": 10}) as place:
        await place.engine.fall()
        registry = place.served.gateway.registry
        async with asyncio.timeout(LIMIT_S):
            while not registry.down("m"):
                await registry.changed()
        waiting = asyncio.create_task(place.ask("waits"))
        await place.served.settled(DEPTH, 1)
        await place.engine.rise()
        assert place.whole(await waiting)


async def test_e23_where_all_rest_nothing_waits_and_the_smallest_rest_is_told(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", 2) as place:
        place.engines["a"].ask("429", retry_after=20)
        place.engines["b"].ask("429", retry_after=7)
        first = await place.ask("x")
        assert (first.status, retry_after(first)) == (429, 7)
        reached, began_s = len(place.seen), asyncio.get_running_loop().time()
        for _ in range(5):
            answer = await place.ask("x")
            assert (answer.status, answer.error and answer.error["code"]) == (503, "engines_busy")
            assert 5 <= retry_after(answer) <= 7
        assert asyncio.get_running_loop().time() - began_s < 0.5 * SLACK
        assert len(place.seen) == reached


async def test_under_pressure_a_broken_answer_is_not_gone_on_with(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "vllm", 2, timeouts=QUICK, limits={"inflight_requests": 100}) as place:
        pressure = place.served.gateway.gate.pressure
        for mode, number in itertools.product(("reset_mid_stream after=3", "500"), range(2)):
            pressure.requests += 80 * number
            answer = await place.ask(f"[[tokens=8]][[chaos:{mode} only=a]] {number}")
            assert place.record["attempts"] == 2 - number
            assert answer.done is (number == 0), answer.error
            pressure.requests -= 80 * number
            await place.ready()


async def test_a_full_queue_loses_no_broken_answer(no_leaks: NoLeaks) -> None:
    """The queue of all models says nothing of what the other engine can go on with, and closes nobody's connection."""
    async with fleet(no_leaks, "vllm", 2, engine={"most_running": 4}, limits={"queue_requests": 2}) as place:
        texts = [f"[[tokens=60]][[chaos:slow s=0.05]] {number}" for number in range(10)]
        asked = [asyncio.create_task(super(Fleet, place).ask(text)) for text in texts]
        await place.served.settled(DEPTH, 2)
        metrics = await place.served.metrics()
        assert (metrics["interlock_queue_fill[]"], metrics["interlock_pressure[]"] < 0.8) == (1.0, True)
        await place.engines["a"].fall()
        answers = await asyncio.gather(*asked)
        assert [answer.error for answer in answers] == [None] * 10
        assert all(answer.done and "\r\nconnection: close" not in answer.head.lower() for answer in answers)


async def test_requests_beyond_the_bound_are_refused_unread(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", 1, limits={"inflight_requests": 2}) as place:
        async with held(place) as first, held(place) as second:
            answer = await place.ask("third")
            assert (answer.status, answer.error and answer.error["code"]) == (503, "overloaded")
            assert "\r\nconnection: close" in answer.head.lower()
            assert (await place.served.client.get("/health")).status_code == 200
            assert await ended(place, *first)
            await ended(place, *second)
            assert second[1].done
        assert place.whole(await place.ask("fourth"))
        assert len(place.seen) == 3


# ---- a process of its own -------------------------------------------------------------------------------------------------


def settings_of(engine: FaultEngine, **sections: Any) -> dict[str, Any]:
    engines = [{"id": "e", "url": engine.url, "kind": "llamacpp"}]
    return {"models": [{"name": "m", "source": str(tiny_model()), "engines": engines}], **sections}


@contextlib.asynccontextmanager
async def apart(settings: dict[str, Any], folder: Path) -> AsyncIterator[ServeProcess]:
    """A gateway in a process of its own, while this loop turns."""
    process = serve_process(settings, folder)
    gateway = await asyncio.to_thread(process.__enter__)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)


@pytest.mark.timeout(120)
async def test_c11_a_process_that_was_stopped_blames_nobody(tmp_path: Path) -> None:
    """Longer than any limit of a stage, and than a probe may take: streams go on, and the engine is as it was."""
    limits = {"headers_s": 1.5, "first_token_s": 1.5, "between_tokens_s": 1.5}
    async with FaultEngine().working() as engine, apart(settings_of(engine, timeouts=limits), tmp_path) as gateway:
        texts = [f"[[tokens=60]][[chaos:slow s=0.05]] {number}" for number in range(4)]
        streams = [asyncio.create_task(ask(gateway.url, chat(text))) for text in texts]
        async with asyncio.timeout(LIMIT_S):
            while sum(len(each.sent) > 3 for each in engine.seen) < 4:
                await asyncio.sleep(0.02)
        os.kill(gateway.pid, signal.SIGSTOP)
        await asyncio.sleep(6)
        os.kill(gateway.pid, signal.SIGCONT)
        answers = await asyncio.gather(*streams)
        again = await ask(gateway.url, chat("again"))
        said = sorted(text_of(unbroken(seen.prompt)) for seen in engine.seen[:4])
    assert [answer.error for answer in answers] == [None] * 4
    assert sorted(answer.text for answer in answers) == said
    assert again.done
    assert [record for record in records(log_of(tmp_path)) if record["event"] == "engine not ready"] == []
