"""Routing under faults and load, on real sockets: where requests go, and that nothing of one that is over stays charged."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from faults.client import Answer, RawClient, ask, chat, connected, request
from faults.engine import FaultEngine
from faults.leaks import CANARIES, NoLeaks
from faults.place import Fleet
from faults.proxy import FaultProxy
from faults.speech import Kind
from support.scripted_engine import ScriptedEngine
from support.scripted_engine import chat as spoken

from gateway.errors import EngineBroke
from gateway.routing.router import Router

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
per_kind = pytest.mark.parametrize("kind", KINDS)
CHUNK = 32


@contextlib.asynccontextmanager
async def routed(
    leaks: NoLeaks, kind: Kind, count: int, costs: dict[str, Any] | None = None, **changed: Any
) -> AsyncIterator[Fleet]:
    """So many engines that take time as `costs` says, and a gateway that routes by what they have cached."""
    routing = {"chunk_tokens": CHUNK, **changed.pop("routing", {})}
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(FaultEngine(name, **(costs or {})).working()) for name in "abcdefgh"[:count]
        }
        proxy = await stack.enter_async_context(FaultProxy(engines["a"].url).working())
        urls = {name: each.url for name, each in engines.items()}
        settings = leaks.settings_of(urls, kind, changed.pop("engine", {}), routing=routing, **changed)
        served = await stack.enter_async_context(leaks.serving(settings, *engines.values()))
        place = Fleet(engines["a"], proxy, served, leaks, kind, engines)
        await place.ready()
        yield place


def router(place: Fleet, model: str = "m") -> Router:
    return place.served.gateway.gate.guides.of(model).router


def spread(place: Fleet) -> Counter[str]:
    """How many calls each engine has seen."""
    return Counter({name: len(each.seen) for name, each in place.engines.items()})


# ---- nothing is left ------------------------------------------------------------------------------------------------------

LEAVERS = 1_000
AT_ONCE = 24
SHARED = ("You are a careful assistant. " * 20, "Answer in verse. " * 30, "")
AWAY = (
    "[[tokens=8]]",
    "[[tokens=200]][[chaos:slow s=0.02]]",
    "[[chaos:hang_before_headers]]",
    "[[chaos:slow_first s=0.3]]",
    "[[tokens=60]][[chaos:reset_mid_stream after=4 only=a]][[chaos:slow s=0.02 only=b]][[chaos:slow s=0.02 only=c]]",
    "[[tokens=90]][[chaos:close_mid_stream after=2 only=b]][[chaos:slow s=0.02 only=a]][[chaos:slow s=0.02 only=c]]",
    "[[chaos:500 only=a]][[chaos:hang_before_first only=b]]",
    "[[chaos:500 only=b]][[chaos:500 only=c]]",
)


@per_kind
async def test_a_thousand_clients_that_leave_at_any_point_leave_nothing(no_leaks: NoLeaks, kind: Kind) -> None:
    """`no_leaks` sees at the end that nothing is charged, pinned, expected or kept, and that nobody waits."""
    chance, numbers = random.Random(7), iter(range(LEAVERS))
    costs = {"slots": 8, "prefill_us": 40.0}
    failures = {"retries": 2, "retry_share": 0.0, "eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0.0}
    async with routed(no_leaks, kind, 3, costs, routing={"hold_s": 0.4}, failures=failures) as place:

        async def leaver(number: int) -> None:
            text = f"{chance.choice(SHARED)} {'x' * chance.choice((0, 0, 400, 1500))} {number} {chance.choice(AWAY)}"
            data = place.request(text, n=chance.choice((1, 1, 1, 3)))
            async with connected(place.served.url) as client:
                await client.send(data)
                with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                    if chance.random() < 0.25:  # it sees some of its answer
                        async with asyncio.timeout(1.0):
                            await client.reader.readuntil(b"data: ")
                    async with asyncio.timeout(chance.choice((0.0, 0.05, 0.3, 1.0, 1.5)) * chance.random()):
                        while await client.reader.read(1 << 16):
                            pass
                client.leave()

        async def leavers() -> None:
            for number in numbers:
                await leaver(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(leavers())
        assert router(place).entries > 0
    gone = [each for each in no_leaks.records if each["outcome"] == "client_gone"]
    seen = {
        "in all": len(gone),
        "before a first token": sum(not each["ttft_s"] and bool(each["attempts"]) for each in gone),
        "in mid-stream": sum(bool(each["ttft_s"]) for each in gone),
        "while held": sum(bool(each["queue_s"]) and not each["attempts"] for each in gone),
        "after a failure": sum(bool(each["retries"]) for each in gone),
        "while gone on with": sum(bool(each["resumes"]) for each in gone),
    }
    assert all(seen.values()), seen


# ---- where requests go ----------------------------------------------------------------------------------------------------

SYSTEM = "You answer in one short line and name no one. " * 12
OWN_TOKENS = 60  # of one of the requests that begin with it
OWN_S = 0.08  # for these, which an engine takes
MOST_OPEN = 64


@pytest.fixture
def by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of engines that are equal, any: not the first, as in most tests."""
    chance = random.Random(11)
    monkeypatch.setattr("support.gateway.Least.random", lambda _: chance.random())


async def one(place: Fleet, connection: RawClient, number: int, text: str) -> None:
    """A request with the system prompt and some text of its own, which is answered whole."""
    own, answer = f"{text} {number:06} " + "y" * 40, Answer()
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": own}]
    place.leaks.sent()
    await connection.send(request(chat(messages=messages)))
    await connection.read(answer)
    assert answer.done, bytes(answer.raw[-500:])


async def rush(place: Fleet, count: int, clients: int, text: str = "[[tokens=1]]") -> Counter[str]:
    """So many requests with one system prompt, by so many clients that ask one after the other; where they went."""
    numbers, before = iter(range(count)), spread(place)

    async def client() -> None:
        async with connected(place.served.url) as connection:
            for number in numbers:
                await one(place, connection, number, text)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return spread(place) - before


async def drizzle(place: Fleet, count: int, per_s: float) -> Counter[str]:
    """The same, each at the moment that chance gives it, whether those before were answered or not; where this machine cannot do
    so many in the time, as soon as fewer than `MOST_OPEN` are open."""
    chance, before, loop = random.Random(5), spread(place), asyncio.get_running_loop()
    at_s, room = loop.time(), asyncio.Semaphore(MOST_OPEN)

    async def client(number: int) -> None:
        try:
            async with connected(place.served.url) as connection:
                await one(place, connection, number, "[[tokens=1]]")
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await room.acquire()
            group.create_task(client(number))
            at_s += chance.expovariate(per_s)
            await asyncio.sleep(at_s - loop.time())
    return spread(place) - before


@pytest.mark.usefixtures("by_chance")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("count", "load"), [(10_000, 0.5), (2_000, 0.9)])
async def test_requests_with_one_system_prompt_spread_over_eight_engines(no_leaks: NoLeaks, count: int, load: float) -> None:
    """Half of what they can do is what a fleet is sized for. With less they spread less, as it is meant: a tenth is no more than
    one engine does, which has the prompt already."""
    async with routed(no_leaks, "vllm", 8, {"slots": 1, "prefill_us": OWN_S / OWN_TOKENS * 1e6}) as place:
        counts = await drizzle(place, count, load * 8 / OWN_S)
        most = max(counts.values()) / (count / 8)
        print(f"{count} requests at {load:.0%} of what eight engines do: the most of an engine is {most:.3f} of the mean")
        assert most <= 1.2, counts
        made = sum(len(seen.prompt) - seen.cached for seen in place.seen)
        assert made / count == pytest.approx(OWN_TOKENS, rel=0.05), "the load was another"


@pytest.mark.usefixtures("by_chance")
async def test_a_system_prompt_is_made_on_no_more_engines_than_are_needed(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 8, {"slots": 1, "prefill_us": 300.0}) as place:
        assert len(await rush(place, 60, 1)) == 1
        assert len(await rush(place, 120, 4)) <= 4


# ---- policies -------------------------------------------------------------------------------------------------------------


async def say(place: Fleet, text: str, *headers: str, **fields: Any) -> str:
    """The engine that has answered."""
    place.leaks.sent()
    answer = await ask(place.served.url, chat(text, **fields), *headers)
    assert answer.done, bytes(answer.raw[-500:])
    return str(place.record["engine"])


@per_kind
async def test_round_robin_takes_turns_and_passes_over_what_cannot_serve(no_leaks: NoLeaks, kind: Kind) -> None:
    async with routed(no_leaks, kind, 3, routing={"policy": "round_robin"}) as place:
        assert "".join([await say(place, "the same") for _ in range(7)]) == "abcabca"
        place.served.gateway.registry.drain("b", True)
        assert "".join([await say(place, "the same") for _ in range(4)]) == "caca"


async def test_the_least_outstanding_is_the_one_with_the_fewest_requests(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 3, routing={"policy": "least_outstanding"}) as place, asyncio.TaskGroup() as group:
        for count in range(1, 7):
            group.create_task(say(place, f"[[chaos:slow_first s=1.5]] {count}"))
            async with asyncio.timeout(5):
                while sum(spread(place).values()) < count:
                    await asyncio.sleep(0.002)
        assert spread(place) == {"a": 2, "b": 2, "c": 2}


SESSIONS = [f"session {number}" for number in range(24)]
NAMES = ("x-session-affinity", "x-session-id", "x-claude-code-session-id")


async def homes(place: Fleet) -> dict[str, str]:
    """Where each session goes, however it is named."""
    found: dict[str, str] = {}
    for number, session in enumerate(SESSIONS):
        other = [f"{name}: {session}" for name in NAMES[number % 3 :]]
        body = {"prompt_cache_key": session, "max_tokens": 2}
        engines = {
            await say(place, f"{number} of it", **body),
            await say(place, f"{number} of more", *[f"{name}: another" for name in NAMES], **body),
            await say(place, f"{number} of headers", *other[:1], *other[2:], max_tokens=2),
        }
        assert len(engines) == 1, f"{session} is on {engines}"
        found[session] = engines.pop()
    return found


async def test_a_session_has_its_engine_and_moves_only_with_it(no_leaks: NoLeaks) -> None:
    slow_ejection = {"eject_failures": 3, "eject_s": 60.0}
    async with routed(no_leaks, "vllm", 4, routing={"policy": "session"}, failures=slow_ejection) as place:
        registry = place.served.gateway.registry
        before = await homes(place)
        assert len({*before.values()}) == 4
        registry.drain("b", True)
        drained = await homes(place)
        assert [each for each in SESSIONS if drained[each] != before[each]] == [each for each in SESSIONS if before[each] == "b"]
        registry.drain("b", False)
        assert await homes(place) == before
        for _ in range(3):
            registry.visit("c").failed(EngineBroke("it broke"))
        assert registry.breaker_state("c") == "open"
        ejected = await homes(place)
        assert [each for each in SESSIONS if ejected[each] != before[each]] == [each for each in SESSIONS if before[each] == "c"]
        assert {registry.breaker_state(name) for name in "abd"} == {"closed"}


async def test_without_a_session_the_cost_decides(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 3, {"prefill_us": 20.0}, routing={"policy": "session"}) as place:
        home = await say(place, "long " * 100)
        assert {await say(place, "long " * 100 + f"{number}") for number in range(5)} == {home}


@pytest.mark.usefixtures("by_chance")
async def test_a_hint_decides_where_nothing_else_does(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 4, {"prefill_us": 20.0}, routing={"chunk_tokens": 8192}) as place:
        assert len({await say(place, "short", max_tokens=2) for _ in range(12)}) > 1
        hinted = {
            each: {await say(place, f"{n}", prompt_cache_key=each, max_tokens=2) for n in range(4)} for each in SESSIONS[:8]
        }
        assert {len(engines) for engines in hinted.values()} == {1}
        assert len(set().union(*hinted.values())) > 1


async def test_a_hint_is_no_reason_to_leave_a_cache(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 4, {"prefill_us": 20.0}) as place:
        text = "long " * 100
        home = await say(place, text, prompt_cache_key="x")
        assert {await say(place, f"{text} {each}", prompt_cache_key=each) for each in SESSIONS[:8]} == {home}


# ---- engines that fail ----------------------------------------------------------------------------------------------------

LONG = "All of this is known. " * 60
STEADY = {"eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0.0}


@per_kind
async def test_an_engine_that_fails_half_of_the_time_does_not_draw_what_it_has_cached(no_leaks: NoLeaks, kind: Kind) -> None:
    async with routed(no_leaks, kind, 3, {"prefill_us": 20.0}, failures=STEADY) as place:
        home = await say(place, LONG)
        place.engines[home].ask("500", every=2)
        before = spread(place)
        for number in range(60):
            assert (await place.ask(f"{LONG} {number}")).done
        counts = spread(place) - before
        assert counts[home] <= 8, counts
        assert place.served.gateway.registry.breaker_state(home) == "closed"


@per_kind
async def test_a_try_never_goes_back_to_an_engine_that_failed(no_leaks: NoLeaks, kind: Kind) -> None:
    async with routed(no_leaks, kind, 4, failures={**STEADY, "attempts": 3, "retries": 100}) as place:
        home = await say(place, LONG)
        other = "b" if home == "a" else "a"
        for number in range(30):
            fault = ("500", "error_before_first", "wrong_content_type")[number % 3]
            text = f"[[chaos:{fault} only={home}]][[chaos:{fault} only={other}]] {number}"
            assert place.whole(await place.ask(f"{LONG} {text}", stream=bool(number % 2)))
            calls = [name for name, engine in place.engines.items() for seen in engine.seen if seen in place.since_last()]
            assert len(calls) == len({*calls}) == place.record["attempts"]
        assert spread(place)[home] > 1


@per_kind
async def test_the_next_turn_of_an_answer_that_moved_goes_where_it_ended(no_leaks: NoLeaks, kind: Kind) -> None:
    async with routed(no_leaks, kind, 3, {"prefill_us": 20.0}) as place:
        home = await say(place, LONG)
        text = f"{LONG} [[tokens=60]][[chaos:reset_mid_stream after=30 only={home}]]"
        answer = await place.ask(text)
        assert place.whole(answer), answer.error
        moved = place.record["engine"]
        assert (moved != home, place.record["resumes"]) == (True, 1)
        said = [
            {"role": "user", "content": f"{text} {CANARIES['prompt']}"},
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": "And then?"},
        ]
        await place.ready()
        assert await say(place, "", messages=said) == moved
        assert place.engines[str(moved)].seen[-1].cached > 1_300


@per_kind
async def test_an_engine_that_was_away_is_believed_empty(no_leaks: NoLeaks, kind: Kind) -> None:
    async with routed(no_leaks, kind, 2, {"prefill_us": 20.0}, failures={"slow_start_s": 0.0}) as place:
        registry, our = place.served.gateway.registry, router(place)
        home = await say(place, LONG)
        assert our.snapshot(home).index_entries >= 39
        await place.engines[home].fall()
        async with asyncio.timeout(10):
            while not registry.standing(home).down:
                await asyncio.sleep(0.01)
        assert our.snapshot(home).index_entries >= 39, "it may only be busy"
        await place.engines[home].rise()
        await place.ready()
        await say(place, "short")
        assert our.snapshot(home).index_entries <= 2
        assert place.engines[home].seen[-1].cached == 0


async def test_a_drained_engine_gets_nothing_and_keeps_its_cache(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 2, {"prefill_us": 20.0}) as place:
        registry = place.served.gateway.registry
        home = await say(place, LONG)
        registry.drain(home, True)
        other = await say(place, f"{LONG} 1")
        assert other != home
        registry.drain(home, False)
        registry.drain(other, True)
        assert await say(place, f"{LONG} 2") == home
        assert place.engines[home].seen[-1].cached > 1_000


async def test_where_all_are_ejected_requests_are_served_and_charged_all_the_same(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 4, {"prefill_us": 20.0}, failures={"eject_failures": 1, "eject_s": 60.0}) as place:
        registry = place.served.gateway.registry
        for name in place.engines:
            registry.visit(name).failed(EngineBroke("it broke"))
        assert {registry.breaker_state(name) for name in place.engines} == {"open"}
        assert (await place.ask(LONG)).done
        home = place.record["engine"]
        assert (await place.ask(f"{LONG} 1")).done
        assert place.record["engine"] == home


@per_kind
async def test_a_bound_of_an_engine_is_held_whatever_it_has_cached(no_leaks: NoLeaks, kind: Kind) -> None:
    async with routed(no_leaks, kind, 2, {"prefill_us": 20.0, "token_s": 0.01}, engine={"most_running": 2}) as place:
        await say(place, LONG)
        async with asyncio.TaskGroup() as group:
            for number in range(24):
                group.create_task(say(place, f"{LONG} {number}", n=1 + number % 2, max_tokens=5))
        assert {engine.most_running for engine in place.engines.values()} == {2}


# ---- engines that template themselves, and bounds -------------------------------------------------------------------------


async def test_a_conversation_that_an_engine_templates_stays_with_its_engine(no_leaks: NoLeaks) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(ScriptedEngine().running()) for name in "abc"}
        for each in engines.values():
            each.script = lambda _: spoken("Hi")
        settings = no_leaks.settings_of({name: each.url for name, each in engines.items()}, "openai", {})
        served = await stack.enter_async_context(no_leaks.serving(settings))
        async with asyncio.timeout(5):
            while not all(map(served.gateway.registry.is_ready, engines)):
                await asyncio.sleep(0.005)
        messages = [{"role": "user", "content": "long " * 500}]
        for turn in range(6):
            no_leaks.sent()
            answer = await ask(served.url, chat(messages=messages))
            assert answer.done, bytes(answer.raw[-500:])
            messages += [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": f"go on {turn}"}]
        assert sorted(len(each.calls) for each in engines.values()) == [0, 0, 6]
        assert served.gateway.gate.guides.of("m").router.entries > 0


async def test_the_index_stays_within_its_bound(no_leaks: NoLeaks) -> None:
    async with routed(no_leaks, "vllm", 3, routing={"index_entries": 1024, "chunk_tokens": 16}) as place:
        for number in range(120):
            await say(place, f"{number} " + chr(97 + number % 26) * 900, max_tokens=2)
            assert router(place).entries <= 1024
        assert router(place).entries > 900
