"""The rows of the matrix of faults that hold with several engines: each test is named by its row.

Bounds in seconds are the rows' own, several times over: the machine that runs this is shared.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from faults.client import Answer, ask, chat, connected
from faults.engine import process
from faults.leaks import NoLeaks
from faults.place import QUICK, Fleet, fleet
from faults.proxy import Line
from faults.saying import text_of, unbroken
from faults.speech import Kind
from support.gateway import tiny_model
from support.process import serve_process

pytestmark = pytest.mark.faults

SLACK = 5
AT_ONCE_S = 0.1 + SLACK * 0.03  # a whole answer, and what its second try adds: no timer of ours has rung meanwhile
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
per_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, no_leaks: NoLeaks) -> AsyncIterator[Fleet]:
    async with fleet(no_leaks, request.param, timeouts=QUICK) as found:
        yield found


def calls(place: Fleet, name: str) -> int:
    """How many requests this engine has seen."""
    return len(place.engines[name].seen)


def counted(place: Fleet, name: str) -> list[bool]:
    """What the engine's breaker has counted, one for each outcome: whether it failed."""
    return list(place.served.gateway.registry.standing(name).breaker._last)


def state(place: Fleet, name: str) -> str:
    return place.served.gateway.registry.breaker_state(name)


async def timed(asking: Awaitable[Answer]) -> tuple[Answer, float]:
    """An answer, and how long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    return await asking, loop.time() - began_s


async def saved(place: Fleet, text: str, extra_s: float, *, served_by: str = "b") -> None:
    """The client gets the whole answer from another engine, as the second call of two, and waits no longer than so."""
    before = {name: calls(place, name) for name in place.engines}
    answer, took_s = await timed(place.ask(text))
    assert place.whole(answer), (answer.error, place.record)
    assert answer.finishes == ["stop"]
    assert calls(place, served_by) == before[served_by] + 1
    assert place.record["engine"] == served_by
    assert place.record["attempts"] == 2
    assert took_s <= extra_s


async def load(place: Fleet, clients: int, go_on: Callable[[], bool], text: str = "[[tokens=8]]") -> list[Answer]:
    """Clients that ask one thing after the other, each another, while they are to go on."""
    answers: list[Answer] = []

    async def client(number: int) -> None:
        asked = 0
        while go_on():
            asked += 1
            answers.append(await place.ask(f"{text} {number} {asked}"))

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return answers


def so_many(count: int) -> Callable[[], bool]:
    """True so many times."""
    left = iter(range(count))
    return lambda: next(left, None) is not None


def for_seconds(seconds: float) -> Callable[[], bool]:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    return lambda: loop.time() < until_s


async def test_e1_one_of_two_that_refuses_costs_no_client_anything(place: Fleet) -> None:
    usual = [(await timed(place.ask(f"[[tokens=3]] {number}")))[1] for number in range(20)]
    await place.engines["a"].fall()
    waits = []
    for number in range(40):
        answer, took_s = await timed(place.ask(f"[[tokens=3]] {number}"))
        assert place.whole(answer), answer.error
        waits.append(took_s)
    assert max(waits) <= max(usual) + SLACK * 0.02
    assert counted(place, "a")[-1] is True
    assert counted(place, "a").count(True) == 1, "after that it was known to be down"
    assert calls(place, "b") == 40


async def test_e1_many_at_once_meet_an_engine_that_is_gone(place: Fleet) -> None:
    await place.engines["a"].fall()
    answers = await load(place, 20, so_many(60))
    assert len(answers) == 60
    assert all(answer.done for answer in answers), [answer.error for answer in answers if not answer.done]


@per_kind
async def test_e2_an_engine_that_takes_no_connection_is_out_after_two(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, timeouts={"connect_s": 0.3}) as place:
        port = int(place.engine.url.rpartition(":")[2])
        await place.engine.fall()
        with deaf(port):
            for number in range(2):
                assert state(place, "a") == "closed"
                await saved(place, f"x {number}", 0.3 + SLACK * 0.1)
            assert state(place, "a") == "open"
            answer, took_s = await timed(place.ask("x"))
            assert place.whole(answer)
            assert place.record["attempts"] == 1
            assert took_s < 0.3
        assert counted(place, "a") == [True, True]


@contextlib.contextmanager
def deaf(port: int) -> Iterator[None]:
    """A port on which no SYN is answered."""
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=0))
        for _ in range(4):  # they fill the queue
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(silent.getsockname())
        yield


@pytest.mark.parametrize("mode", ["hang_before_headers", "hang_before_first"])
async def test_e3_e6_silence_moves_the_request_and_closes_upstream_first(place: Fleet, mode: str) -> None:
    await saved(place, f"[[chaos:{mode} only=a]]", 0.5 + SLACK * 0.1)
    silent, other = place.engines["a"].seen[-1], place.engines["b"].seen[-1]
    closed_s = await place.closed(silent)
    assert 0.4 <= closed_s - silent.began_s <= 0.5 + SLACK * 0.1
    assert closed_s <= other.began_s + SLACK * 0.01
    assert counted(place, "a") == [True]
    assert counted(place, "b") == [False]


@pytest.mark.parametrize("mode", ["close_before_headers", "rst_before_headers"])
async def test_e4_an_end_before_the_headers_moves_the_request(place: Fleet, mode: str) -> None:
    for number in range(3):
        await saved(place, f"[[chaos:{mode} only=a]] {number}", AT_ONCE_S)
        await place.ready()
    assert counted(place, "a") == [True] * 3


@pytest.mark.parametrize("code", [500, 503])
async def test_e14_an_error_event_before_the_first_token_moves_the_request(place: Fleet, code: int) -> None:
    await saved(place, f"[[chaos:error_before_first code={code} only=a]]", AT_ONCE_S)
    assert counted(place, "a") == [True]


@pytest.mark.parametrize(
    "fault",
    [
        *(f"{mode} after=0" for mode in ("bad_json", "not_object", "nan", "nul", "deep_json", "bad_chunk_size")),
        *("html_200", "wrong_content_type", "no_content_type"),
        *("http_garbage", "header_bomb"),
        "redirect to=/canary",
    ],
)
async def test_e15_e20_e21_e22_nonsense_before_the_first_byte_moves_the_request(place: Fleet, fault: str) -> None:
    for stream in (True, False):
        answer = await place.ask(f"[[ascii]][[chaos:{fault} only=a]]", stream=stream)
        assert place.whole(answer), (answer.error, place.record)
        assert place.record["engine"] == "b"
        assert place.record["attempts"] == 2
        await place.ready()
    assert counted(place, "a") == [True, True]
    assert place.engine.odd == []


@pytest.mark.parametrize("given", ["retry_after=2", "retry_after=2 date=1"])
@pytest.mark.parametrize("code", [429, 503])
async def test_e23_a_busy_engine_rests_and_another_serves_now(place: Fleet, code: int, given: str) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await saved(place, f"[[chaos:{code} {given} only=a times=1]]", AT_ONCE_S)
    standing = place.served.gateway.registry.standing("a")
    asked = calls(place, "a")
    while standing.rests_s(place.served.gateway.registry.now_s()):
        assert asked == 1, "it was asked while it rests"
        assert place.whole(await place.ask("[[tokens=2]]"))
        asked = calls(place, "a")
        await asyncio.sleep(0.05)
    assert (0.9 if "date" in given else 1.9) <= loop.time() - began_s <= 2.0 + AT_ONCE_S + SLACK * 0.1
    assert place.whole(await place.ask("[[tokens=2]]"))
    assert calls(place, "a") >= 2
    assert not any(counted(place, "a")), "a busy engine is no broken one"


@pytest.mark.parametrize("fault", ["429 retry_after=none", "429 retry_after=0", "503 retry_after=0", "408", "421"])
async def test_e23_one_that_does_not_say_until_when_it_is_busy_draws_nothing(place: Fleet, fault: str) -> None:
    """It refuses at once, and so would be idle for ever."""
    answers = await load(place, 10, so_many(150), f"[[tokens=2]][[chaos:{fault} only=a]][[chaos:slow s=0.01]]")
    assert [answer.error for answer in answers if not answer.done] == []
    assert len(place.seen) / len(answers) <= 1.2
    assert not any(counted(place, "a"))


@pytest.mark.parametrize("fault", ["429 retry_after=none", "408"])
async def test_e23_where_there_is_no_other_it_is_asked_all_the_same(no_leaks: NoLeaks, fault: str) -> None:
    async with fleet(no_leaks, "vllm", 1) as place:
        assert (await place.ask(f"[[chaos:{fault}]]")).status == int(fault[:3])
        assert place.whole(await place.ask("x"))


@pytest.mark.parametrize(("first_s", "second_s", "told_s"), [(9, 4, 4), (3, 9, 3)])
@pytest.mark.parametrize("code", [429, 503])
async def test_e23_where_all_are_busy_the_client_is_told_of_the_first(
    place: Fleet, code: int, first_s: int, second_s: int, told_s: int
) -> None:
    busy = f"[[chaos:{code} retry_after={first_s} only=a]][[chaos:{code} retry_after={second_s} only=b]]"
    for _ in range(3):  # then without asking any
        answer = await place.ask(busy)
        assert answer.status in (429, 503)
        after_s = int(answer.head.lower().partition("\r\nretry-after: ")[2].split()[0])
        assert told_s - 1 <= after_s <= told_s
        assert (calls(place, "a"), calls(place, "b")) == (1, 1)


async def test_e23_one_that_rests_is_told_of_where_another_is_busy(place: Fleet) -> None:
    await saved(place, "[[chaos:429 retry_after=3 only=a]]", AT_ONCE_S)
    answer = await place.ask("[[chaos:429 retry_after=9 only=b]]")
    assert answer.status == 429
    assert int(answer.head.lower().partition("\r\nretry-after: ")[2].split()[0]) <= 3


async def test_e24_an_engine_out_of_memory_moves_the_request(place: Fleet) -> None:
    await saved(place, "[[chaos:oom_500 only=a]]", AT_ONCE_S)
    assert counted(place, "a") == [True]


@per_kind
@pytest.mark.parametrize("mode", ["oom_500", "rst_before_headers"])
async def test_e24_a_request_that_fells_two_engines_is_given_to_no_third(no_leaks: NoLeaks, kind: Kind, mode: str) -> None:
    async with fleet(no_leaks, kind, 3, timeouts=QUICK) as place:
        answer = await place.ask(f"[[chaos:{mode}]]")
        assert answer.status == 502
        assert answer.error is not None
        assert answer.error["code"] == "poison_request"
        assert place.record["attempts"] == 2
        # A call that went out on a kept connection is sent once more to the same engine.
        assert len(place.since_last()) <= (2 if mode == "oom_500" else 4)
        assert len([name for name in place.engines if calls(place, name)]) == 2
        await place.ready()
        assert {state(place, name) for name in place.engines} == {"closed"}
        assert place.whole(await place.ask("x"))


@pytest.mark.parametrize("mode", ["oom_500", "rst_before_headers"])
async def test_e24_a_request_for_several_answers_fells_few_more_than_it_asks_at_once(no_leaks: NoLeaks, mode: str) -> None:
    """Each of its answers is tried at once; the second engine that falls stops them all."""
    async with fleet(no_leaks, "vllm", 8, timeouts=QUICK) as place:
        answer = await place.ask(f"[[chaos:{mode}]]", n=4)
        assert answer.error is not None
        assert answer.error["code"] == "poison_request"
        assert len([name for name in place.engines if calls(place, name)]) <= 4 + 1


@pytest.mark.parametrize("mode", ["400", "404", "422", "context_length"])
async def test_e25_what_the_client_did_wrong_is_tried_once_and_counts_nothing(place: Fleet, mode: str) -> None:
    answer = await place.ask(f"[[chaos:{mode}]]")
    assert answer.status == (400 if mode == "context_length" else int(mode))
    assert len(place.seen) == 1
    assert counted(place, "a") == []


async def test_a_client_that_leaves_counts_nothing(place: Fleet) -> None:
    for number, fault in enumerate(("hang_before_headers", "hang_before_first", "slow s=0.05")):
        async with connected(place.served.url) as client:
            await client.send(place.request(f"[[tokens=900]][[chaos:{fault}]] {number}"))
            async with asyncio.timeout(5):
                while len(place.seen) <= number:
                    await asyncio.sleep(0.002)
            client.leave(reset=True)
        await place.closed()
    assert (counted(place, "a"), counted(place, "b")) == ([], [])
    assert place.whole(await place.ask("x"))


@per_kind
async def test_e26_an_engine_that_restarts_is_tried_once_and_gets_its_part_little_by_little(
    no_leaks: NoLeaks, kind: Kind
) -> None:
    async with fleet(no_leaks, kind, failures={"slow_start_s": 4}) as place:
        a, loop = place.engines["a"], asyncio.get_running_loop()
        samples: list[tuple[float, int, int]] = []
        sampling = asyncio.create_task(sampled(place, samples))
        clients = asyncio.create_task(load(place, 16, for_seconds(10), "[[tokens=12]][[chaos:slow s=0.02]]"))
        await asyncio.sleep(0.5)
        await a.fall()
        await asyncio.sleep(0.5)
        assert state(place, "a") == "open", "what ran there has failed"
        await asyncio.sleep(1.5)
        before = len(a.seen)
        await a.rise()
        up_s = loop.time()
        await place.ready()
        assert loop.time() - up_s <= 1.0
        answers = await clients
        sampling.cancel()
        assert [answer.error for answer in answers if not answer.done] == []
        first, second = a.seen[before : before + 2]
        assert first.first_s is not None
        assert second.began_s >= first.first_s, "two tried it"
        shares = [share(samples, up_s + at_s, up_s + at_s + 1) for at_s in range(6)]
        assert shares[0] < 0.25, shares
        assert shares[0] < shares[2] < shares[5], shares
        assert 0.4 <= shares[5] <= 0.6, shares


async def sampled(place: Fleet, samples: list[tuple[float, int, int]]) -> None:
    """When, and how many requests ran on each of two engines."""
    while True:
        a, b = place.served.gateway.registry.view("m").engines
        samples.append((asyncio.get_running_loop().time(), a.running, b.running))
        await asyncio.sleep(0.01)


def share(samples: list[tuple[float, int, int]], from_s: float, to_s: float) -> float:
    """The part of `a` of all that ran in this time."""
    ran = [(a, b) for at_s, a, b in samples if from_s <= at_s < to_s]
    return sum(a for a, _ in ran) / sum(a + b for a, b in ran)


@per_kind
async def test_e27_half_a_fleet_that_fails_half_of_its_requests(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, 4, failures={"attempts": 2}) as place:
        for name in "ac":
            place.engines[name].ask("500", every=2)
        out: list[int] = []
        go_on = so_many(400)

        def watched() -> bool:
            view = place.served.gateway.registry.view("m")
            out.append(sum(engine.ejected for engine in view.engines))
            return go_on()

        answers = await load(place, 8, watched, "[[tokens=4]]")
        assert len(answers) == 400
        assert sum(answer.done for answer in answers) >= 0.99 * 400
        assert len(place.seen) / 400 <= 1.2
        assert max(out) == 2
        # Where all of them fail, none is spared: each request is tried.
        for engine in place.engines.values():
            engine.ask("500")
        for number in range(60):
            tried = len(place.seen)
            assert (await place.ask(f"x {number}")).status == 502
            assert tried < len(place.seen) <= tried + 2
        assert sum(state(place, name) != "closed" for name in place.engines) == 4
        for engine in place.engines.values():
            engine.ask("none")
        assert place.whole(await place.ask("x"))
        assert state(place, str(place.record["engine"])) == "closed", "it serves, and waits for no trial"


async def test_e27_two_of_three_that_fail_at_once_draw_nothing_from_a_slow_one(no_leaks: NoLeaks) -> None:
    """What fails at once is never busy. All requests find the one that serves, and soon without asking another."""
    async with fleet(no_leaks, "vllm", 3) as place:
        asks = "[[tokens=4]][[chaos:500 only=a]][[chaos:500 only=b]][[chaos:slow_first s=0.3]]"
        waits: list[float] = []
        answers: list[Answer] = []

        async def client(number: int) -> None:
            for asked in range(8):
                answer, took_s = await timed(place.ask(f"{asks} {number} {asked}"))
                answers.append(answer)
                waits.append(took_s)

        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(client(number))
        assert [answer.error for answer in answers if not answer.done] == []
        assert len(place.seen) / len(answers) <= 1.2
        assert sorted(waits)[len(waits) // 2] <= 0.3 * SLACK
        assert calls(place, "c") >= len(answers)


@per_kind
async def test_e28_without_any_engine_the_answer_is_quick_and_it_recovers(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind) as place:
        for engine in place.engines.values():
            await engine.fall()
        await load(place, 8, so_many(8))  # some of them find out, and the probes after them
        async with asyncio.timeout(SLACK):
            while not place.served.gateway.registry.down("m"):
                await asyncio.sleep(0.01)
        waits = []
        for number in range(50):
            answer, took_s = await timed(place.ask(f"x {number}"))
            assert answer.status == 503
            assert "\r\nretry-after: " in answer.head.lower()
            waits.append(took_s)
        assert sorted(waits)[-2] <= SLACK * 0.05
        for engine in place.engines.values():
            await engine.rise()
        _, took_s = await timed(recovered(place))
        assert took_s < 2.0 + 1.0


BROKEN = ["hang_mid_stream after=9", "hang_before_headers"]


@contextlib.asynccontextmanager
async def breaking(leaks: NoLeaks, kind: Kind, fault: str) -> AsyncIterator[tuple[Fleet, "asyncio.Task[Answer]"]]:
    """A fleet of two, and an answer that runs on `b` and stops there, until `b` falls. The way to `a` can be made slow."""
    async with fleet(leaks, kind, proxied=True) as place:
        place.served.gateway.registry.drain("a", True)
        asked = asyncio.create_task(place.ask(f"[[tokens=16]][[chaos:{fault} only=b]]"))
        async with asyncio.timeout(5):
            while not place.engines["b"].seen or len(place.last.sent) < (9 if "mid" in fault else 0):
                await asyncio.sleep(0.005)
        place.served.gateway.registry.drain("a", False)
        yield place, asked


async def lost(place: Fleet) -> None:
    """`a` breaks the answer to another client, which goes on with it on `b`."""
    answer = await place.misbehave("reads", "[[tokens=8]][[chaos:reset_mid_stream after=2 only=a]]", random.Random(), stream=True)
    assert answer.done
    assert not place.served.gateway.registry.is_ready("a")
    assert not place.served.gateway.registry.standing("a").asked


@per_kind
@pytest.mark.parametrize("fault", BROKEN)
async def test_an_engine_that_only_lost_a_connection_is_waited_for(no_leaks: NoLeaks, kind: Kind, fault: str) -> None:
    async with breaking(no_leaks, kind, fault) as (place, asked):
        place.proxy.lines = lambda _: Line(delay_s=0.2)
        await place.proxy.drop()  # a probe of `a` takes a while
        await lost(place)
        await place.engines["b"].fall()
        answer = await asked
        assert answer.done, answer.error
        assert answer.finishes == ["stop"]
        assert answer.text == text_of(unbroken(place.engines["b"].seen[0].prompt))
        assert place.record["engine"] == "a"
        assert place.record["attempts"] == 2


@per_kind
@pytest.mark.parametrize("fault", BROKEN)
async def test_an_engine_that_a_probe_found_down_is_not_waited_for(no_leaks: NoLeaks, kind: Kind, fault: str) -> None:
    async with breaking(no_leaks, kind, fault) as (place, asked):
        await place.engines["a"].fall()
        async with asyncio.timeout(5):
            while not place.served.gateway.registry.standing("a").down:
                await asyncio.sleep(0.01)
        await place.engines["b"].fall()
        answer, took_s = await timed(asked)
        assert answer.error is not None
        assert took_s < SLACK * 0.1


async def test_an_engine_that_answers_no_probe_is_waited_for_a_moment_only(no_leaks: NoLeaks) -> None:
    async with breaking(no_leaks, "vllm", BROKEN[0]) as (place, asked):
        place.engines["a"].healthy = "hang"
        await lost(place)
        await place.engines["b"].fall()
        answer, took_s = await timed(asked)
        assert answer.error is not None
        assert 1.0 < took_s < 4.5, "a probe takes 5 s"


async def recovered(place: Fleet) -> Answer:
    """The first answer that is whole."""
    while not (answer := await place.ask("x")).done:
        await asyncio.sleep(0.02)
    return answer


async def test_e29_an_engine_that_is_well_and_fails_is_out(place: Fleet) -> None:
    place.engines["a"].ask("500")
    for number in range(5):
        await saved(place, f"[[tokens=2]] {number}", AT_ONCE_S)
    assert state(place, "a") == "open"
    for number in range(20):  # it says all the while that it is well, and is asked more often than that
        assert place.whole(await place.ask(f"[[tokens=2]] {number}"))
        assert place.record["attempts"] == 1
        await asyncio.sleep(0.12)
    assert place.served.gateway.registry.is_ready("a")
    assert calls(place, "a") == 5


@per_kind
async def test_e26_one_request_tries_an_ejected_engine_and_one_that_leaves_makes_room(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, timeouts={"headers_s": 20}, failures={"eject_s": 0.5}) as place:
        place.engines["a"].ask("500", times=5)
        for number in range(5):
            await saved(place, f"[[tokens=2]] {number}", AT_ONCE_S)
        assert state(place, "a") == "open"
        await asyncio.sleep(0.6)
        async with connected(place.served.url) as client:
            await client.send(place.request("[[chaos:hang_before_headers only=a]]"))
            async with asyncio.timeout(5):
                while calls(place, "a") < 6:
                    await asyncio.sleep(0.002)
            trial = place.engines["a"].seen[-1]
            for number in range(5):
                assert place.whole(await place.ask(f"[[tokens=2]] {number}"))
            assert (calls(place, "a"), state(place, "a")) == (6, "half_open")
            client.leave(reset=True)
        await place.closed(trial)
        async with asyncio.timeout(5):
            while state(place, "a") == "half_open":
                assert place.whole(await place.ask("[[tokens=2]]"))
        assert state(place, "a") == "closed"
        assert calls(place, "a") == 7


async def test_e29_probes_that_hang_eject_no_engine_that_serves(place: Fleet) -> None:
    registry = place.served.gateway.registry
    for engine in place.engines.values():
        engine.healthy = "hang"
    ready: list[bool] = []
    going = for_seconds(9)  # a probe begins within 2 s, and hangs for 5

    def watched() -> bool:
        ready.append(all(registry.is_ready(name) for name in place.engines))
        return going()

    answers = await load(place, 6, watched, "[[tokens=10]][[chaos:slow s=0.01]]")
    assert [answer.error for answer in answers if not answer.done] == []
    assert all(ready)
    assert counted(place, "a") == counted(place, "b") == [False] * 20


@pytest.mark.parametrize("metrics", [False, "hang"])
async def test_e30_without_metrics_the_load_is_spread_by_what_runs(place: Fleet, metrics: bool | str) -> None:
    for engine in place.engines.values():
        engine.metrics = metrics  # type: ignore[assignment]  # one of both
    answers = await load(place, 8, so_many(240), "[[tokens=6]][[chaos:slow s=0.004]]")
    assert all(answer.done for answer in answers)
    assert all(0.8 * 120 <= calls(place, name) <= 1.2 * 120 for name in place.engines)


@per_kind
async def test_c11_a_gateway_that_stood_still_ejects_no_engine_and_cuts_no_stream(tmp_path: Path, kind: Kind) -> None:
    async with process("--name", "a") as a, process("--name", "b") as b, httpx.AsyncClient(trust_env=False) as client:
        engines = [{"id": name, "url": each["url"], "kind": kind} for name, each in (("a", a), ("b", b))]
        settings = {"models": [{"name": "m", "source": str(tiny_model()), "engines": engines}], "limits": {"render_workers": 0}}
        with serve_process(settings, tmp_path) as gateway:
            stream = asyncio.create_task(ask(gateway.url, chat("[[ascii]][[tokens=200]][[chaos:slow s=0.06]]"), limit_s=50))
            for each in (a, b):
                await client.post(f"{each['admin_url']}/admin/health", json={"healthy": "hang"})
            await asyncio.sleep(2.5)  # by now a probe of each waits for its answer
            os.kill(gateway.pid, signal.SIGSTOP)
            try:
                for each in (a, b):
                    await client.post(f"{each['admin_url']}/admin/health", json={"healthy": True})
                await asyncio.sleep(5.5)
            finally:
                os.kill(gateway.pid, signal.SIGCONT)
            answer = await stream
            answer.check()
            assert answer.done
            assert (await client.get(f"{gateway.url}/ready")).status_code == 200
    assert [record for record in gateway.log if record["event"] == "engine not ready"] == []
    assert gateway.access_log[-1]["attempts"] == 1


async def test_few_retries_at_a_time_begin_and_their_room_is_free_once_their_engine_generates(no_leaks: NoLeaks) -> None:
    """All that an engine had fails at once: the other is given three of it at a time, the next when one has begun."""
    count, failures = 30, {"eject_failures": 10_000, "eject_share": 1.0}
    async with fleet(no_leaks, "vllm", timeouts={**QUICK, "headers_s": 1.0}, failures=failures) as place:
        registry = place.served.gateway.registry
        registry.drain("b", True)
        text = "[[tokens=16]][[chaos:hang_before_headers only=a]][[chaos:slow s=0.06 only=b]]"
        asked = asyncio.create_task(load(place, count, so_many(count), text))
        async with asyncio.timeout(5):
            while calls(place, "a") < count:
                await asyncio.sleep(0.005)
        registry.drain("b", False)
        assert [answer.error for answer in await asked if not answer.done] == []
        seen = place.engines["b"].seen
        assert len(seen) == count
        assert at_once((each.began_s, each.first_s) for each in seen) <= max(3, count // 10)
        assert at_once((each.began_s, each.ended_s) for each in seen) > 2 * max(3, count // 10)


def at_once(spans: Iterable[tuple[float, float | None]]) -> int:
    """How many of these lasted at the same time, at most."""
    known = [(began_s, ended_s) for began_s, ended_s in spans if ended_s is not None]
    return max(sum(began_s <= at_s < ended_s for began_s, ended_s in known) for at_s, _ in known)
