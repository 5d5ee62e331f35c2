"""The whole gateway before engines that tell what their caches hold: `/fleet` and the metric say whose word counts, requests go
where the engines say that their prompts are, and whatever becomes of the events, every request is answered."""

import asyncio
import contextlib
import itertools
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.telling import BLOCK, Telling
from structlog.testing import capture_logs
from support.gateway import Served, sample, serving, settings_for
from support.kv_publisher import Publisher, removed, stored

from gateway.fleet import probe
from gateway.fleet.discovery import DiscoveryRules
from gateway.fleet.probe import ProbeTimes
from gateway.routing import prefix

CHUNK = BLOCK
REFUSED = "what the engine tells of its cache is not used"
LIVE = {"state": "live", "reason": ""}
WORDS = "all the words that an agent says to its model in a turn, and those of all the turns before it; " * 3
KINDS = {"stored", "removed", "cleared", "unknown", "unreadable"}


def text(name: str) -> list[dict[str, str]]:
    """A conversation that shares nothing with another's but the template."""
    return [{"role": "user", "content": f"{name} {WORDS}"}]


async def ids_of(served: Served, name: str) -> list[int]:
    """Its prompt."""
    response = await served.client.post("/v1/chat/completions/render", json={"model": "m", "messages": text(name)})
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["ids"]
    return found


async def asked(served: Served, name: str) -> Any:
    """Its one attempt, as `/explain` has it: the request was answered."""
    answer = await served.chat(messages=text(name))
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "Hello"), answer.text
    explained = await served.client.get(f"{served.admin_url}/explain?request_id={answer.headers['x-request-id']}")
    ((attempt,),) = [each["attempts"] for each in explained.json()["requests"]]
    return attempt


def chunks(attempt: Any) -> tuple[int, int]:
    """What was predicted of the cache, and what the engine said, in whole chunks."""
    predicted, reported = attempt["forecast"]["cached_tokens"], attempt["cached_tokens"] or 0
    assert predicted % CHUNK == reported % CHUNK == 0
    return predicted // CHUNK, reported // CHUNK


async def told(served: Served) -> dict[str, Mapping[str, str]]:
    """What `/fleet` has of each engine's events."""
    engines = (await served.client.get(f"{served.admin_url}/fleet")).json()["engines"]
    return {each["id"]: each["kv_events"] for each in engines}


async def is_told(served: Served, engine: str, state: str, reason: str = "", within_s: float = 10.0) -> None:
    """Waits until `/fleet` says so, and the metric too."""
    async with asyncio.timeout(within_s):
        while (await told(served)).get(engine) != {"state": state, "reason": reason}:
            await asyncio.sleep(0.01)
    await served.settled(of("engine_kv_events_live", engine), {"live": 1.0, "shadow": 0.0, "off": None}[state])


async def heard(served: Served, engine: str, kind: str, count: int) -> None:
    """Waits until so many events of this kind were taken."""
    await served.settled(of("kv_events_total", engine, kind=kind), float(count), within_s=10.0)


def of(name: str, engine: str, **labels: str) -> str:
    return sample(f"interlock_{name}", model="m", engine=engine, **labels)


@contextlib.contextmanager
def engines_of(folder: Path, names: str = "ab", **about: Any) -> Iterator[dict[str, Telling]]:
    """Engines by their names, whose publishers end with this."""
    engines = {name: Telling(folder / name, **about) for name in names}
    try:
        yield engines
    finally:
        for each in engines.values():
            each.stops()


@contextlib.asynccontextmanager
async def running(engines: Mapping[str, Telling]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in engines.values():
            await stack.enter_async_context(each.running())
        yield


def entries(engines: Mapping[str, Telling]) -> list[dict[str, Any]]:
    """What the settings have of them."""
    return [{"id": name, "url": each.url, "kind": "vllm", "kv_events": each.entry()} for name, each in engines.items()]


@contextlib.asynccontextmanager
async def gateway(engines: Mapping[str, Telling], **changed: Any) -> AsyncIterator[Served]:
    """A gateway before these, all of which are live."""
    async with running(engines):
        settings = settings_for("", engines=entries(engines), routing={"chunk_tokens": CHUNK}, **changed)
        async with serving(settings) as served:
            for name in engines:
                await is_told(served, name, "live")
            yield served


@pytest.mark.parametrize("holder", ["a", "b"])
async def test_what_another_client_sent_draws_the_first_request_to_the_engine_that_holds_it(tmp_path: Path, holder: str) -> None:
    with engines_of(tmp_path) as engines:
        async with gateway(engines) as served:
            assert await told(served) == {"a": LIVE, "b": LIVE}
            ids = await ids_of(served, "theirs")
            engines[holder].works_on(ids)
            await heard(served, holder, "stored", 1)
            attempt = await asked(served, "theirs")
            assert (attempt["engine"], attempt["why"]) == (holder, "cheapest")
            assert chunks(attempt) == ((len(ids) - 1) // CHUNK,) * 2
            assert all(len(each.calls) == (name == holder) for name, each in engines.items())


async def test_a_gateway_that_has_just_started_knows_what_was_told_before(tmp_path: Path) -> None:
    with engines_of(tmp_path) as engines:
        async with gateway(engines) as served:
            homes = {name: (await asked(served, name))["engine"] for name in ("one", "two", "three")}
        async with gateway(engines) as served:
            for name, home in homes.items():
                attempt = await asked(served, name)
                assert attempt["engine"] == home
                assert chunks(attempt)[0] == chunks(attempt)[1] > 5


async def test_what_was_evicted_is_expected_no_more(tmp_path: Path) -> None:
    with engines_of(tmp_path, "a") as engines:
        async with gateway(engines) as served:
            ids, engine = await ids_of(served, "theirs"), engines["a"]
            engine.works_on(ids)
            engine.evicts(ids, keeps=7)
            await heard(served, "a", "removed", 1)
            assert chunks(await asked(served, "theirs")) == (7, 7)
            await heard(served, "a", "stored", 2)
            assert chunks(await asked(served, "theirs")) == ((len(ids) - 1) // CHUNK,) * 2
            engine.evicts(ids, keeps=3)
            await heard(served, "a", "removed", 2)
            assert chunks(await asked(served, "theirs")) == (3, 3)
            assert (await served.metrics())[of("cache_predictions_total", "a", result="right")] == 3


async def silent(_: Served, engine: Telling) -> None:
    engine.tells = False


async def forgetful(_: Served, engine: Telling) -> None:
    engine.forgets = True


async def lossy(served: Served, engine: Telling) -> None:
    for first in range(3):
        engine.publisher.publish(stored(range(first * 100, first * 100 + 64), BLOCK), lost=first < 2)
    await served.settled(of("kv_event_gaps_total", "a"), 1.0)


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        pytest.param(silent, "parity", id="tells nothing more"),
        pytest.param(forgetful, "parity", id="has nothing of what it tells"),
        pytest.param(lossy, "history", id="some are lost, and it keeps only its last"),
    ],
)
async def test_an_engine_that_cannot_be_followed_serves_by_the_shadow_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Any, reason: str
) -> None:
    monkeypatch.setattr(prefix, "_CONFIRM_S", 0.2)
    with engines_of(tmp_path, "a", buffer=1) as engines:
        engine, numbers = engines["a"], itertools.count()
        async with gateway(engines) as served:
            for _ in range(2):  # it reports what it had from the first time on that it had something
                await asked(served, "before")
            with capture_logs() as logs:
                await fails(served, engine)
                async with asyncio.timeout(20):
                    while (await told(served))["a"] == LIVE:
                        await asked(served, f"talk {next(numbers) % 3}")
                await is_told(served, "a", "shadow", reason)
                for _ in range(4):
                    await asked(served, "later")
                await is_told(served, "a", "shadow", reason)
            assert [(each["why"], each["log_level"], each["engine"]) for each in logs if each["event"] == REFUSED] == [
                (reason, "warning", "a")
            ]
            engine.forgets, engine.tells = False, True
            predicted, _ = chunks(await asked(served, "later"))
            assert predicted > 5, "what was sent there is believed"
            engine.restarts()
            engine.works_on(await ids_of(served, "new"))
            await is_told(served, "a", "live")
            assert chunks(await asked(served, "new"))[0] > 5


async def test_an_engine_that_was_restarted_in_place_is_expected_to_have_what_it_tells_since(tmp_path: Path) -> None:
    with engines_of(tmp_path, "a") as engines:
        async with gateway(engines) as served:
            engine, ids = engines["a"], await ids_of(served, "old")
            engine.works_on(ids)
            await heard(served, "a", "stored", 1)
            engine.restarts()
            engine.works_on(await ids_of(served, "new"))
            await heard(served, "a", "stored", 2)
            await is_told(served, "a", "live")
            assert chunks(await asked(served, "old")) == (0, 0)
            assert chunks(await asked(served, "new"))[0] > 5


async def test_an_engine_that_was_away_is_told_so_and_followed_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ProbeTimes", lambda: ProbeTimes(ready_s=0.05, down_s=0.05))
    with engines_of(tmp_path) as engines:
        async with gateway(engines, failures={"slow_start_s": 0}) as served:
            engines["b"].works_on(await ids_of(served, "theirs"))
            await heard(served, "b", "stored", 1)
            with capture_logs() as logs:
                engines["b"].up = False
                await is_told(served, "b", "shadow", "unreachable")
                assert (await asked(served, "theirs"))["engine"] == "a"
            assert [each["why"] for each in logs if each["event"] == REFUSED] == ["unreachable"]
            assert (await told(served))["a"] == LIVE
            engines["b"].restarts()
            engines["b"].works_on(await ids_of(served, "new"))
            engines["b"].up = True
            await is_told(served, "b", "live")
            attempt = await asked(served, "new")
            assert attempt["engine"] == "b"
            assert chunks(attempt)[0] > 5


async def test_where_an_engine_tells_it_may_change_and_end_while_the_gateway_runs(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"

    def names(*found: dict[str, Any]) -> None:
        new = file.with_suffix(".new")
        new.write_text(json.dumps(found))
        os.replace(new, file)

    with engines_of(tmp_path) as engines:
        async with running(engines):
            (own, other) = entries(engines)
            names(own)
            made = settings_for("", engines=[own], routing={"chunk_tokens": CHUNK})
            models = tuple(model.model_copy(update={"engines": (), "engines_file": file}) for model in made.models)
            settings = made.model_copy(update={"models": models})
            async with serving(settings, discovery=DiscoveryRules(poll_s=0.05)) as served:
                await is_told(served, "a", "live")
                engines["b"].works_on(await ids_of(served, "elsewhere"))
                with capture_logs() as logs:
                    names({**own, "kv_events": other["kv_events"]})
                    await heard(served, "a", "stored", 1)
                    attempt = await asked(served, "elsewhere")
                assert attempt["engine"] == "a"
                assert attempt["forecast"]["cached_tokens"] // CHUNK > 5
                assert not [each for each in logs if each["event"] == REFUSED], "it was out meanwhile"
                names({key: value for key, value in own.items() if key != "kv_events"})
                await is_told(served, "a", "off")
                assert not kv_series(await served.metrics(), "a")
                assert (await asked(served, "elsewhere"))["forecast"]["cached_tokens"] // CHUNK > 5
                names(own)
                await is_told(served, "a", "live")
                names(own, other)
                await is_told(served, "b", "live")
                names(other)
                async with asyncio.timeout(10):
                    while "a" in await told(served) or kv_series(await served.metrics(), "a"):
                        await asyncio.sleep(0.01)
                assert (await asked(served, "last"))["engine"] == "b"


def kv_series(metrics: Mapping[str, float], engine: str) -> set[str]:
    return {name for name in metrics if "kv_event" in name and f"'{engine}'" in name}


async def test_nothing_that_is_told_makes_series(tmp_path: Path) -> None:
    with engines_of(tmp_path, "a") as engines:
        async with gateway(engines) as served:
            publisher = engines["a"].publisher
            for number in range(50):
                publisher.publish({"type": f"Block{number}"}, {"type": "AllBlocksCleared"})
                publisher.publish(stored(range(64), BLOCK, lora_name=f"lora {number}", medium=f"TIER{number}"))
                publisher.publish(removed(range(64), medium=f"TIER{number}"))
            publisher.raw(b"topic", b"short", b"x")
            publisher.send(b"no msgpack")
            await heard(served, "a", "unreadable", 1)
            kinds = {of("kv_events_total", "a", kind=kind) for kind in KINDS}
            others = {of("engine_kv_events_live", "a"), of("kv_event_gaps_total", "a")}
            found = kv_series(await served.metrics(), "a")
            assert {each for each in found if "_created" not in each} == kinds | others
            assert (await asked(served, "after"))["engine"] == "a"


async def test_a_gateway_that_goes_down_leaves_no_thread_and_no_socket(tmp_path: Path) -> None:
    """While one engine publishes without a pause, one does not answer what is asked for, and one is nowhere; an answer runs."""
    with engines_of(tmp_path, "abc") as engines, publishing(engines["a"].publisher):
        engines["b"].publisher.deaf = True
        async with running(engines):
            before = descriptors()
            found = entries(engines)
            found[2]["kv_events"] = {"endpoint": "tcp://127.0.0.1:9", "replay_endpoint": "tcp://127.0.0.1:9"}
            for each in engines.values():
                each.hang_after = 1
            settings = settings_for("", engines=found, server={"drain_s": 0.5})
            async with serving(settings) as served:
                await is_told(served, "a", "live")
                assert sum(each.name == "interlock-kv" for each in threading.enumerate()) == 3
                answer = asyncio.create_task(served.chat(stream=True))
                async with asyncio.timeout(10):
                    while not any(each.calls for each in engines.values()):
                        await asyncio.sleep(0.01)
                    served.stop.set()
                    assert (await answer).status_code == 200
                    while any(each.name == "interlock-kv" for each in threading.enumerate()):
                        await asyncio.sleep(0.01)
            async with asyncio.timeout(10):
                while descriptors() - before:
                    await asyncio.sleep(0.01)


@contextlib.contextmanager
def publishing(publisher: Publisher) -> Iterator[None]:
    """Batches one after the other, from a thread."""
    over = threading.Event()

    def publish() -> None:
        number = 0
        while not over.is_set():
            number += 1
            publisher.publish(stored(range(number, number + 64), BLOCK))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def descriptors() -> set[tuple[str, str]]:
    """What is open in this process, but for files."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of this very listing
            what = os.readlink(f"/proc/self/fd/{number}")
            found.add((number, what))
    return {each for each in found if not each[1].startswith("/")}
