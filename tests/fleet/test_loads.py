"""Engines are asked for their load while they are ready; what they answer, or do not, changes nothing else."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import pytest
from fakes.conforming import ConformingEngine, Load
from fakes.sglang import FakeSglang
from fakes.trtllm import FakeTrtLlm
from fakes.vllm import FakeVllm
from structlog.testing import capture_logs
from support.scripted_engine import CLOSE, HANG, RESET
from yarl import URL

from engines.base import EngineInfo, EngineLoad
from engines.registry import make
from gateway.events import AttemptFailed, AttemptStarted
from gateway.fleet.loads import Drift, Loads, LoadTimes
from gateway.fleet.registry import Member, Registry
from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.upstream import Upstream

QUICK = LoadTimes(every_s=0.02, limit_s=0.2, drift_s=0.2, again_s=0.1)


async def until(happened: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.01)


def member(name: str, url: str, kind: str = "vllm") -> Member:
    return Member(id=name, model="m", engine=make(kind), root=URL(url))


@contextlib.asynccontextmanager
async def asking(
    *members: Member, on_info: Callable[[Member, EngineInfo], None] = lambda *_: None, times: LoadTimes = QUICK
) -> AsyncIterator[Registry]:
    """A registry whose engines are asked, all of them ready."""
    registry = Registry(members)
    for each in members:
        registry.set_ready(each.id, True)
    async with Upstream() as upstream:
        task = asyncio.create_task(Loads(registry, upstream, on_info, times).run())
        try:
            yield registry
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


def load_of(registry: Registry, name: str = "a") -> EngineLoad | None:
    found = registry.standing(name).load(registry.now_s())
    return found[1] if found is not None else None


def age_s(registry: Registry, name: str = "a") -> float:
    found = registry.standing(name).load(registry.now_s())
    assert found is not None
    return found[0]


def asked(engine: ConformingEngine, path: str = "/metrics") -> int:
    return [seen.path for seen in engine.seen].count(path)


async def test_an_engine_is_asked_again_and_again_while_it_is_ready() -> None:
    async with FakeVllm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load = Load(3, 2, 0.25)
        async with asking(member("a", engine.url)) as registry:
            await until(lambda: load_of(registry) == EngineLoad(3, 2, 0.25))
            engine.load = Load(1, 0, 0.5)
            await until(lambda: load_of(registry) == EngineLoad(1, 0, 0.5))
            registry.set_ready("a", False)
            await asyncio.sleep(0.05)  # what was asked just before is answered
            before = asked(engine)
            await asyncio.sleep(0.2)
            assert asked(engine) == before
            registry.set_ready("a", True)
            await until(lambda: asked(engine) > before)
    assert {seen.path for seen in engine.seen} == {"/metrics"}


async def test_engines_that_come_and_go_are_asked_as_long_as_they_are_there() -> None:
    async with FakeVllm().running() as one, FakeVllm().running() as two:
        assert isinstance(one, ConformingEngine)
        assert isinstance(two, ConformingEngine)
        two.load = Load(7)
        async with asking(member("a", one.url)) as registry:
            await until(lambda: asked(one) > 2)
            registry.add(member("b", two.url))
            registry.set_ready("b", True)
            await until(lambda: load_of(registry, "b") == EngineLoad(7, 0, 0.0))
            registry.remove("a")
            await asyncio.sleep(0.05)
            before = asked(one)
            registry.add(member("b", two.url, "trtllm"))  # as another kind it is asked another way
            registry.set_ready("b", True)
            await until(lambda: asked(two, "/prometheus/metrics") > 1)
            assert asked(one) == before


def scrape(prompt_tokens: int) -> list[object]:
    body = b'vllm:prompt_tokens_total{engine="0"} %d.0\n' % prompt_tokens
    return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), CLOSE]


async def test_what_was_believed_of_an_engine_that_was_restarted_unseen_is_dropped() -> None:
    router, keys = Router(Tuning(hold_s=None), random.Random(1)), tuple(range(1, 41))

    def expected(registry: Registry) -> int:
        """Tokens of a prompt that was sent there before."""
        found = router.choose(Query("r", keys, 41 * 128, patient=False), registry.view("m"), 0.0).cached_tokens
        router.cancelled("r", 0.0)
        return found

    async with FakeVllm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.answers["/metrics"] = scrape(9000)
        async with asking(member("a", engine.url)) as registry:
            await until(lambda: load_of(registry) == EngineLoad(prompt_tokens=9000))
            expected(registry)
            router.choose(Query("1", keys, 41 * 128, patient=False), registry.view("m"), 0.0)
            router.first_token("1", 0.1)
            router.finished("1", 0.2, 10)
            assert expected(registry) == 40 * 128
            engine.answers["/metrics"] = scrape(70)
            with capture_logs() as logs:
                await until(lambda: registry.standing("a").restarts == 1)
            assert expected(registry) == 0
            assert registry.is_ready("a")
            assert [each["event"] for each in logs] == ["the engine was restarted: what was believed of its cache is dropped"]
            engine.answers["/metrics"] = scrape(80)
            await until(lambda: load_of(registry) == EngineLoad(prompt_tokens=80))
            assert registry.standing("a").restarts == 1


BROKEN = {
    "hang": [HANG],
    "reset": [RESET],
    "endless": [b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\nvllm:num_requests_running 1\n", HANG],
    "garbage": [b"ICY 200\r\n\r\n", CLOSE],
    "refused": [b"HTTP/1.1 503 No\r\ncontent-length: 29\r\n\r\nvllm:num_requests_running 99\n", CLOSE],
    "elsewhere": [b"HTTP/1.1 307 Go\r\nlocation: /load\r\ncontent-length: 0\r\n\r\n", CLOSE],
    "not_text": [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\0\xff\xfe\0", CLOSE],
    "large": [b"HTTP/1.1 200 OK\r\n\r\n" + b"vllm:num_requests_running 1\n" * 200_000, CLOSE],
}


@pytest.mark.parametrize("how", BROKEN)
async def test_what_goes_wrong_is_silent_and_ages_what_was_known(how: str) -> None:
    async with FakeVllm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load = Load(3, 2, 0.25)
        with capture_logs() as logs:
            async with asking(member("a", engine.url)) as registry:
                await until(lambda: load_of(registry) == EngineLoad(3, 2, 0.25))
                engine.answers["/metrics"] = BROKEN[how]
                before = asked(engine)
                await until(lambda: asked(engine) >= before + 2)
                await until(lambda: age_s(registry) > 0.3)
                assert load_of(registry) == EngineLoad(3, 2, 0.25)
                assert registry.is_ready("a")
                del engine.answers["/metrics"]
                engine.load = Load(4)
                await until(lambda: load_of(registry) == EngineLoad(4, 0, 0.0))
    assert logs == []


async def test_one_that_hangs_holds_no_other_up() -> None:
    async with FakeVllm().running() as one, FakeVllm().running() as two:
        one.answers["/metrics"] = [HANG]
        async with asking(member("a", one.url), member("b", two.url), times=replace(QUICK, limit_s=30)) as registry:
            await until(lambda: load_of(registry, "b") is not None)
            assert load_of(registry, "a") is None


@pytest.mark.parametrize(("lacks", "falls_back"), [(404, True), (501, True), (503, False), (401, False), (200, False)])
async def test_only_what_an_engine_lacks_is_looked_for_elsewhere(lacks: int, falls_back: bool) -> None:
    """TensorRT-LLM's second place tells a step once: another reader may need it."""
    async with FakeTrtLlm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load = Load(3, 2, 0.25)
        engine.answers["/prometheus/metrics"] = [b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % lacks, CLOSE]
        async with asking(member("a", engine.url, "trtllm")) as registry:
            await until(lambda: asked(engine, "/prometheus/metrics") > 4)
            assert (asked(engine) > 0) is falls_back
            assert load_of(registry) == (EngineLoad(3, 2, 0.25) if falls_back else None)


async def test_an_engine_is_identified_once_and_again_after_it_was_away_or_became_another() -> None:
    told: list[EngineInfo] = []
    async with FakeSglang(incremental=False).running() as engine:
        assert isinstance(engine, ConformingEngine)
        async with asking(member("a", engine.url, "sglang"), on_info=lambda _, info: told.append(info)) as registry:
            registry.set_info("a", EngineInfo(model="tiny"))
            known = EngineInfo("0.5.23", "tiny", None, 16, 16_000)
            await until(lambda: registry.info("a") == known)
            await until(lambda: asked(engine) > 9)
            assert asked(engine, "/server_info") == 1
            engine.load = Load(blocks=2000)
            registry.set_ready("a", False)
            await asyncio.sleep(0)
            registry.set_ready("a", True)
            await until(lambda: registry.info("a") == replace(known, kv_tokens=32_000))
            registry.set_info("a", EngineInfo(model="other"))
            await until(lambda: registry.info("a") == replace(known, kv_tokens=32_000, model="other"))
            assert asked(engine, "/server_info") == 3
    assert [(info.model, info.kv_tokens) for info in told] == [("tiny", 16_000), ("tiny", 32_000), ("other", 32_000)]


async def test_what_an_engine_did_not_say_is_asked_again_later() -> None:
    async with FakeTrtLlm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.measures = False
        async with asking(member("a", engine.url, "trtllm")) as registry:
            await until(lambda: asked(engine) > 1)
            assert registry.info("a").kv_tokens is None
            engine.measures = True  # it has made its first step
            await until(lambda: registry.info("a").kv_tokens == 16_000)


# Our count and theirs


def test_counts_that_differ_for_long_are_told_once_until_they_were_level() -> None:
    drift = Drift(30.0)
    assert [drift.seen(2.0 * at, 4, 3) for at in range(20)] == [at == 15 for at in range(20)]
    assert not drift.seen(40.0, 3, 3)
    assert [drift.seen(42.0 + 2 * at, 1, 0) for at in range(17)] == [at == 15 for at in range(17)]


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (3, 3), (3, 9), (10, 8), (100, 80)])
def test_counts_that_are_level_or_nearly_are_not_told(ours: int, theirs: int) -> None:
    drift = Drift(30.0)
    assert not any(drift.seen(2.0 * at, ours, theirs) for at in range(100))


def test_counts_that_differ_now_and_then_or_with_nothing_known_between_are_not_told() -> None:
    drift = Drift(30.0)
    assert not any(drift.seen(2.0 * at, 4, 4 if at % 10 == 9 else 0) for at in range(100))
    assert not any(drift.seen(1000 + 6.0 * at, 4, 0) for at in range(100))


async def test_a_leak_in_our_count_is_told_once_with_both_figures() -> None:
    async with FakeVllm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load = Load(1, 1)
        with capture_logs() as logs:
            async with asking(member("a", engine.url)) as registry:
                for number in range(4):
                    registry.running.apply(started(number))
                await until(lambda: logs)
                seen = asked(engine)
                await until(lambda: asked(engine) > seen + 20)
                assert registry.is_ready("a")
    (told,) = logs
    assert (told["engine"], told["gateway"], told["running"], told["waiting"]) == ("a", 4, 1, 1)
    assert told["log_level"] == "warning"


async def test_requests_of_others_on_the_engine_are_no_drift() -> None:
    async with FakeVllm().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load = Load(4, 0)
        with capture_logs() as logs:
            async with asking(member("a", engine.url), times=replace(QUICK, drift_s=0.0)) as registry:
                for number in range(4):
                    registry.running.apply(started(number))
                await until(lambda: asked(engine) > 20)
                registry.running.apply(AttemptFailed("r0", 0, "a", "engine_gone"))
                await until(lambda: asked(engine) > 40)
    assert logs == []


class _Ending(FakeVllm):
    """A request ends while the engine is asked."""

    ends: Callable[[], None] = staticmethod(lambda: None)

    def reports(self) -> Mapping[str, object]:
        self.ends()
        return super().reports()


async def test_a_request_that_ends_while_the_engine_is_asked_is_no_drift() -> None:
    async with _Ending().running() as engine:
        assert isinstance(engine, _Ending)
        with capture_logs() as logs:
            async with asking(member("a", engine.url), times=replace(QUICK, drift_s=0.0)) as registry:
                await until(lambda: load_of(registry) is not None)
                engine.ends = lambda: registry.running.apply(AttemptFailed("r0", 0, "a", "engine_gone"))
                registry.running.apply(started(0))
                await until(lambda: asked(engine) > 9)
    assert logs == []


def started(number: int) -> AttemptStarted:
    return AttemptStarted(f"r{number}", 0, "a", "m", 0.0)
