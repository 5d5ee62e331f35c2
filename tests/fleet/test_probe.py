"""Engines go and come back; each is asked at its own pace, and told apart after each comeback."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.gateway import sample, scripted
from support.scripted_engine import CLOSE, HANG, HEAD, RESET, ScriptedEngine, Step, event, llama_token
from support.vocabulary import small_tokenizer
from support.wiring import lose
from yarl import URL

from engines.base import EngineInfo
from engines.registry import make
from gateway.events import AttemptStarted
from gateway.fleet.parity import TEXT, Parity
from gateway.fleet.probe import Prober, ProbeTimes
from gateway.fleet.registry import Member, Registry
from gateway.lag import LoopLag
from gateway.upstream import Upstream

QUICK = ProbeTimes(ready_s=0.02, down_s=0.02, limit_s=0.3)
PARITY: Mapping[str, Parity] = {"m": Parity(small_tokenizer())}
ANOTHER = {"tokens": [1, 2, 3]}
EMPTY = b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n"


async def until(happened: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def probing(
    *urls: str,
    on_info: Callable[[Member, EngineInfo], None] = lambda *_: None,
    key: str | None = None,
    parity: Mapping[str, Parity] = MappingProxyType({}),
    kind: str = "llamacpp",
    times: ProbeTimes = QUICK,
) -> AsyncIterator[Registry]:
    members = [Member(id=f"e{at}", model="m", engine=make(kind), root=URL(url), api_key=key) for at, url in enumerate(urls)]
    registry = Registry(members)
    async with LoopLag().ticking() as lag, Upstream() as upstream:
        task = asyncio.create_task(Prober(registry, upstream, parity, on_info, stood_s=lag.stood_s, times=times).run())
        try:
            yield registry
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


def paths(engine: ScriptedEngine) -> list[str]:
    return [seen.path for seen in engine.seen]


async def test_an_engine_that_goes_down_and_comes_back_is_identified_again() -> None:
    told: list[tuple[str, EngineInfo]] = []
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = {"build_info": "b1", "default_generation_settings": {"n_ctx": 64}}
        with capture_logs() as logs:
            async with probing(engine.url, on_info=lambda member, info: told.append((member.id, info))) as registry:
                await until(lambda: registry.is_ready("e0"))
                await until(lambda: paths(engine).count("/health") > 4)
                assert registry.info("e0").context_tokens == 64
                engine.up = False
                await until(lambda: not registry.is_ready("e0"))
                engine.answers["/props"] = {"build_info": "b2", "default_generation_settings": {"n_ctx": 32}}
                engine.up = True
                await until(lambda: registry.is_ready("e0"))
                assert registry.info("e0").context_tokens == 32
    assert [(name, info.version) for name, info in told] == [("e0", "b1"), ("e0", "b2")]
    assert [(each["event"], each.get("why")) for each in logs] == [
        ("engine ready", None),
        ("engine not ready", "status 503"),
        ("engine ready", None),
    ]


async def test_an_engine_that_another_replaced_between_two_probes_is_known_for_what_it_is() -> None:
    told: list[int | None] = []
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = {"default_generation_settings": {"n_ctx": 64}}
        async with probing(engine.url, on_info=lambda _, info: told.append(info.context_tokens)) as registry:
            await until(lambda: registry.info("e0").context_tokens == 64)
            engine.answers["/props"] = {"default_generation_settings": {"n_ctx": 32}}
            await until(lambda: registry.info("e0").context_tokens == 32)
            assert registry.is_ready("e0")
    assert told == [64, 32]


async def test_a_large_answer_in_pieces_is_read_whole() -> None:
    info: list[EngineInfo] = []
    async with ScriptedEngine().running() as engine:
        props = {"chat_template": "x" * 300_000, "build_info": "b1", "default_generation_settings": {"n_ctx": 64}}
        body = json.dumps(props).encode()
        pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        engine.answers["/props"] = [head, *(step for piece in pieces for step in (piece, 0.01))]
        async with probing(engine.url, on_info=lambda _, each: info.append(each)) as registry:
            await until(lambda: registry.is_ready("e0"))
    assert [each.context_tokens for each in info] == [64]


async def test_an_engine_that_says_nothing_of_itself_serves_all_the_same() -> None:
    info: list[EngineInfo] = []
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = [b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"]
        async with probing(engine.url, on_info=lambda _, each: info.append(each)) as registry:
            await until(lambda: registry.is_ready("e0"))
    assert info == [EngineInfo()]


async def test_an_engine_that_breaks_while_it_is_identified_is_not_ready() -> None:
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = ["reset"]
        async with probing(engine.url) as registry:
            await until(lambda: paths(engine).count("/props") > 2)
            assert not registry.is_ready("e0")
            engine.answers["/props"] = {}
            await until(lambda: registry.is_ready("e0"))


async def test_a_hung_or_absent_engine_does_not_stop_the_others() -> None:
    async with ScriptedEngine().running() as hung, ScriptedEngine().running() as engine:
        hung.answers["/health"] = ["hang"]
        with capture_logs() as logs:
            async with probing(hung.url, "http://127.0.0.1:9", engine.url) as registry:
                await until(lambda: registry.is_ready("e2"), 0.25)
                await until(lambda: paths(hung).count("/health") > 1)
                assert [each.ready for each in registry.view("m").engines] == [False, False, True]
                assert paths(engine).count("/health") > 3
    told = sorted((each["engine"], each["event"]) for each in logs)  # each once, the ones that were never ready too
    assert told == [("e0", "engine not ready"), ("e1", "engine not ready"), ("e2", "engine ready")]


async def test_a_bug_in_one_probe_is_logged_and_ends_nothing() -> None:
    def fail(member: Member, _info: EngineInfo) -> None:
        if member.id == "e0":
            raise ValueError("a bug")

    async with ScriptedEngine().running() as engine:
        with capture_logs() as logs:
            async with probing(engine.url, engine.url, on_info=fail) as registry:
                await until(lambda: registry.is_ready("e1"))
                await until(lambda: len([each for each in logs if each["event"] == "probe failed"]) > 1)
                assert not registry.is_ready("e0")
    assert all(each["engine"] == "e0" and each["exc_info"] for each in logs if each["event"] == "probe failed")


async def test_the_engine_s_key_is_sent_to_it() -> None:
    async with ScriptedEngine().running() as engine:
        async with probing(engine.url, key="sk-canary") as registry:
            await until(lambda: registry.is_ready("e0"))
        assert {seen.headers.get("authorization") for seen in engine.seen} == {"Bearer sk-canary"}


async def test_what_an_engine_is_becomes_a_metric() -> None:
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = {"build_info": "b123"}
        async with scripted(on=engine) as (_, served):
            metrics = await served.metrics()
    assert metrics[sample("interlock_engine_info", engine="e", kind="llamacpp", model="m", version="b123")] == 1


async def test_an_engine_that_says_its_own_key_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "canary-0123456789")
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = {"build_info": "b123 --api-key canary-0123456789"}
        async with scripted(on=engine, engine={"api_key_env": "ENGINE_KEY"}) as (_, served):
            told = json.dumps(await served.metrics())
    assert "b123 --api-key" in told
    assert "canary" not in told


@pytest.mark.parametrize("status", ["204 No Content", "301 Moved", "404 Not Found", "500 Oops"])
async def test_only_200_is_health(status: str) -> None:
    answer: list[Any] = [f"HTTP/1.1 {status}\r\nlocation: /props\r\ncontent-length: 0\r\n\r\n".encode()]
    async with ScriptedEngine().running() as engine:
        engine.answers["/health"] = answer
        async with probing(engine.url) as registry:
            await until(lambda: len(engine.seen) > 2)
            assert not registry.is_ready("e0")
        assert set(paths(engine)) == {"/health"}


# ---- probes and traffic ---------------------------------------------------------------------------------------------------

WELL = b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n" + b'{"status":"ok"}'


@contextlib.asynccontextmanager
async def generating(registry: Registry) -> AsyncIterator[None]:
    """The engine generates for a client all the while."""

    async def go_on() -> None:
        visit = registry.visit("e0")
        while True:
            visit.heard()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def stays(registry: Registry, for_s: float) -> bool:
    """Whether the engine is ready all the while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            while registry.is_ready("e0"):
                await asyncio.sleep(0.002)
    return registry.is_ready("e0")


@pytest.mark.parametrize("path", ["/health", "/props", "/tokenize"])
async def test_a_probe_that_hangs_takes_no_engine_out_that_generates(path: str) -> None:
    times = replace(QUICK, limit_s=0.15, compare_s=0.05)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=times) as registry:
        await until(lambda: registry.is_ready("e0"))
        async with generating(registry):
            engine.answers[path] = [HANG]
            asked = paths(engine).count(path)
            assert await stays(registry, 0.6)
            assert paths(engine).count(path) >= asked + 2
        await until(lambda: not registry.is_ready("e0"))  # silence on both sides


@pytest.mark.parametrize("path", ["/health", "/props", "/tokenize"])
async def test_an_engine_on_which_a_request_runs_is_out_at_the_third_probe_that_hangs(path: str) -> None:
    times = replace(QUICK, limit_s=0.2, compare_s=0.05)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=times) as registry:
        await until(lambda: registry.is_ready("e0"))
        registry.running.apply(AttemptStarted("r", 1, "e0", "m", 0.0))
        for _ in range(2):  # two are no three
            engine.answers[path] = [HANG]
            asked = paths(engine).count(path)
            await until(lambda asked=asked: paths(engine).count(path) == asked + 2)  # type: ignore[misc]  # bound now
            assert registry.is_ready("e0")
            engine.answers.pop(path)
            served = paths(engine).count("/health")
            assert await stays(registry, 0.4)
            assert paths(engine).count("/health") > served
        engine.answers[path] = [HANG]
        await until(lambda: not registry.is_ready("e0"))
        assert registry.problem("e0") == ("tokenizer_unknown" if path == "/tokenize" else "unreachable")


async def test_a_request_that_runs_excuses_no_engine_that_refuses_a_probe() -> None:
    async with ScriptedEngine().running() as engine, probing(engine.url) as registry:
        await until(lambda: registry.is_ready("e0"))
        registry.running.apply(AttemptStarted("r", 1, "e0", "m", 0.0))
        engine.up = False
        await until(lambda: not registry.is_ready("e0"))
        assert paths(engine).count("/health") > 0
        assert registry.problem("e0") == "unhealthy"


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/health", [EMPTY % b"503 Oops"], "unhealthy"),
        ("/health", [RESET], "unreachable"),
        ("/props", [RESET], "unreachable"),
        ("/tokenize", ANOTHER, "tokenizer_mismatch"),
        ("/tokenize", [EMPTY % b"404 Not Found"], "tokenizer_unknown"),
    ],
)
async def test_what_a_probe_was_told_counts_while_the_engine_generates_too(path: str, answer: Any, problem: str) -> None:
    times = replace(QUICK, compare_s=0.05)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=times) as registry:
        await until(lambda: registry.is_ready("e0"))
        async with generating(registry):
            engine.answers[path] = answer
            await until(lambda: registry.problem("e0") == problem)


async def test_an_engine_that_is_out_is_not_put_back_by_a_probe_that_hangs() -> None:
    async with ScriptedEngine().running() as engine, probing(engine.url, times=replace(QUICK, limit_s=0.1)) as registry:
        engine.up = False
        await until(lambda: registry.problem("e0") == "unhealthy")
        engine.answers["/health"] = [HANG]
        async with generating(registry):
            await until(lambda: registry.problem("e0") == "unreachable")


@pytest.mark.parametrize("path", ["/health", "/props"])
async def test_a_probe_that_was_not_answered_while_the_loop_stood_still_says_nothing(path: str) -> None:
    async with ScriptedEngine().running() as engine, probing(engine.url) as registry:
        await until(lambda: registry.is_ready("e0"))
        engine.answers[path] = [0.1, WELL]
        for _ in range(3):
            asked = paths(engine).count(path)
            await until(lambda asked=asked: paths(engine).count(path) > asked)  # type: ignore[misc]  # bound now
            time.sleep(0.6)  # noqa: ASYNC251  # the loop stands still
            assert await stays(registry, 0.3)
        engine.answers[path] = [HANG]  # nor does it forgive an engine that hangs
        await until(lambda: not registry.is_ready("e0"))


# ---- the tokenizer --------------------------------------------------------------------------------------------------------


def whys(logs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str | None]]:
    return [(each["event"], each.get("problem")) for each in logs if each["log_level"] != "debug"]


async def test_one_that_was_restarted_unseen_is_compared_at_once() -> None:
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY) as registry:
        await until(lambda: registry.is_ready("e0"))
        await until(lambda: paths(engine).count("/health") > 5)
        assert paths(engine).count("/tokenize") == 1
        registry.restarted("e0", 0, "a sign")
        await until(lambda: paths(engine).count("/tokenize") == 2)
        assert registry.is_ready("e0")
        engine.answers["/tokenize"] = ANOTHER
        registry.restarted("e0", 1, "a sign")
        await until(lambda: registry.problem("e0") == "tokenizer_mismatch")


async def test_an_engine_with_another_tokenizer_stays_out_until_it_has_the_right_one() -> None:
    async with ScriptedEngine().running() as engine:
        engine.answers["/tokenize"] = ANOTHER
        with capture_logs() as logs:
            async with probing(engine.url, parity=PARITY) as registry:
                await until(lambda: paths(engine).count("/tokenize") > 3)
                assert registry.problem("e0") == "tokenizer_mismatch"
                assert registry.mismatched("e0")
                del engine.answers["/tokenize"]
                await until(lambda: registry.is_ready("e0"))
                assert not registry.mismatched("e0")
    assert whys(logs) == [("engine not ready", "tokenizer_mismatch"), ("engine ready", None)]
    told = logs[0]
    own = PARITY["m"].ids[0]
    assert (told["position"], told["gateway_id"], told["engine_id"]) == (0, own, 1)
    assert TEXT.startswith(told["text"])
    assert "`source`" in told["why"]


async def test_a_ready_engine_is_not_asked_again_until_it_was_down() -> None:
    async with ScriptedEngine().running() as engine, ScriptedEngine().running() as watched:
        async with probing(engine.url, watched.url, parity=PARITY) as registry:
            await until(lambda: registry.is_ready("e0"))
            await until(lambda: paths(watched).count("/health") > 6)
            assert paths(engine).count("/tokenize") == 1
            engine.up = False
            await until(lambda: registry.problem("e0") == "unhealthy")
            engine.answers["/tokenize"] = ANOTHER
            engine.up = True
            await until(lambda: registry.problem("e0") == "tokenizer_mismatch")
        (asked,) = {seen.headers["content-type"] for seen in engine.seen if seen.path == "/tokenize"}
    assert asked == "application/json"
    assert engine.calls == []


async def test_an_engine_that_says_that_it_is_another_is_out_until_it_has_answered() -> None:
    patient = ProbeTimes(ready_s=0.02, down_s=0.02, limit_s=60)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=patient) as registry:
        await until(lambda: registry.is_ready("e0"))
        engine.answers["/tokenize"] = [HANG]
        engine.answers["/props"] = {"model_alias": "other"}
        await until(lambda: paths(engine).count("/tokenize") == 2)
        assert registry.problem("e0") == "tokenizer_unknown"


async def test_an_engine_that_another_replaced_is_compared() -> None:
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY) as registry:
        await until(lambda: registry.is_ready("e0"))
        engine.answers["/props"] = {"model_alias": "other"}
        await until(lambda: paths(engine).count("/tokenize") == 2)
        await until(lambda: registry.is_ready("e0"))
        engine.answers["/tokenize"] = ANOTHER
        engine.answers["/props"] = {"model_alias": "yet another"}
        await until(lambda: registry.problem("e0") == "tokenizer_mismatch")


async def test_a_ready_engine_that_was_replaced_unseen_is_found_at_the_next_comparison() -> None:
    often = replace(QUICK, compare_s=0.05)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=often) as registry:
        await until(lambda: registry.is_ready("e0"))
        engine.answers["/tokenize"] = ANOTHER
        await until(lambda: registry.problem("e0") == "tokenizer_mismatch")
        del engine.answers["/tokenize"]
        await until(lambda: registry.is_ready("e0"))


async def test_a_ready_engine_serves_while_it_is_compared_again() -> None:
    patient = ProbeTimes(ready_s=0.02, down_s=0.02, limit_s=60, compare_s=0.05)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=patient) as registry:
        await until(lambda: registry.is_ready("e0"))
        asked = paths(engine).count("/tokenize")
        engine.answers["/tokenize"] = [HANG]
        await until(lambda: paths(engine).count("/tokenize") > asked)
        assert registry.is_ready("e0")


async def test_an_engine_that_traffic_lost_is_out_until_it_was_compared() -> None:
    rare = ProbeTimes(ready_s=60, down_s=0.02, limit_s=60)
    async with ScriptedEngine().running() as engine, probing(engine.url, parity=PARITY, times=rare) as registry:
        await until(lambda: registry.is_ready("e0"))
        engine.answers["/tokenize"] = [HANG]
        lose(registry, "e0")
        await until(lambda: paths(engine).count("/tokenize") == 2)
        assert not registry.is_ready("e0")


async def test_what_an_engine_said_before_traffic_lost_it_does_not_count() -> None:
    ids = json.dumps({"tokens": PARITY["m"].ids}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(ids)
    async with ScriptedEngine().running() as engine:
        engine.answers["/tokenize"] = [head, 0.1, ids]
        async with probing(engine.url, parity=PARITY) as registry:
            await until(lambda: paths(engine).count("/tokenize") == 1)
            lose(registry, "e0")
            await until(lambda: registry.is_ready("e0"))
            assert paths(engine).count("/tokenize") == 2


@pytest.mark.parametrize(
    "steps",
    [[RESET], [HEAD, RESET], [HEAD, event(llama_token("a", 1)), RESET], [HEAD, event(llama_token("a", 1)), b"0\r\n\r\n", CLOSE]],
    ids=["before the headers", "before the answer", "in it", "an early end"],
)
async def test_an_engine_that_breaks_off_an_answer_is_compared_at_once(steps: list[Step]) -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: steps
        engine.answers["/tokenize"] = ANOTHER
        broke = await served.chat()
        await until(lambda: served.gateway.registry.problem("e") == "tokenizer_mismatch")
        reached = len(engine.calls)
        engine.script = lambda seen: [HANG]
        refused = await served.chat(max_tokens=1)
        assert len(engine.calls) == reached
    assert (broke.status_code, broke.json()["error"]["code"]) == (502, "engine_broke")
    assert refused.status_code == 503


async def test_an_engine_whose_answer_makes_no_sense_stays() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, event({"tokens": "x"}), CLOSE]
        broke = await served.chat()
        assert served.gateway.registry.is_ready("e")
    assert broke.json()["error"]["code"] == "engine_broke"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([EMPTY % b"404 Not Found"], "(status 404)"),
        ([EMPTY % b"500 Oops"], "(status 500)"),
        ([EMPTY % b"307 Elsewhere"], "(status 307)"),
        ({"count": 3}, "is not what its protocol says"),
        ({"tokens": ["The"]}, "is not what its protocol says"),
        ({"tokens": []}, "it gave no ids: see that `kind` is right"),
        ({"tokens": [1] * 200_000}, "is not what its protocol says"),
        ([HANG], "did not answer in time"),
        ([RESET], "closed the connection"),
    ],
)
async def test_an_engine_that_does_not_tokenise_is_out_and_the_log_says_what_to_do(answer: Any, why: str) -> None:
    async with ScriptedEngine().running() as engine:
        engine.answers["/tokenize"] = answer
        with capture_logs() as logs:
            async with probing(engine.url, parity=PARITY) as registry:
                await until(lambda: paths(engine).count("/tokenize") > 2)
                assert registry.problem("e0") == "tokenizer_unknown"
                assert not registry.mismatched("e0")
    assert whys(logs) == [("engine not ready", "tokenizer_unknown")]
    told = next(each["why"] for each in logs if each["event"] == "engine not ready")
    assert why in told
    assert "let `POST /tokenize` through" in told


async def test_an_engine_that_cannot_tokenise_serves_and_that_is_told_once() -> None:
    async with ScriptedEngine().running() as engine:
        with capture_logs() as logs:
            async with probing(engine.url, parity=PARITY, kind="openai") as registry:
                await until(lambda: registry.is_ready("e0"))
                engine.up = False
                await until(lambda: not registry.is_ready("e0"))
                engine.up = True
                await until(lambda: registry.is_ready("e0"))
    assert [each["event"] for each in logs].count("tokenizer not compared: this kind of engine cannot tokenise") == 1
    assert "/tokenize" not in paths(engine)


async def test_the_key_goes_with_the_text() -> None:
    async with ScriptedEngine().running() as engine:
        async with probing(engine.url, key="sk-canary", parity=PARITY) as registry:
            await until(lambda: registry.is_ready("e0"))
        (asked,) = [seen for seen in engine.seen if seen.path == "/tokenize"]
    assert asked.headers["authorization"] == "Bearer sk-canary"
    assert asked.body == {"content": PARITY["m"].text, "add_special": False, "parse_special": True}


async def test_problems_are_words() -> None:
    async with ScriptedEngine().running() as unwell:
        unwell.up = False
        async with probing(unwell.url, "http://127.0.0.1:9") as registry:
            assert [registry.problem(each) for each in ("e0", "e1")] == ["not_probed", "not_probed"]
            await until(lambda: registry.problem("e0") == "unhealthy" and registry.problem("e1") == "unreachable")


async def test_engines_that_come_go_or_move_are_followed() -> None:
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second, probing(first.url) as registry:
        await until(lambda: registry.is_ready("e0"))
        registry.add(Member(id="e1", model="m", engine=make("llamacpp"), root=URL(second.url)))
        await until(lambda: registry.is_ready("e1"))
        registry.remove("e0")
        await asyncio.sleep(0)
        asked = len(first.seen)
        await asyncio.sleep(10 * QUICK.ready_s)
        assert len(first.seen) <= asked + 1  # the probe that was on its way
        registry.add(replace(registry.members["e1"], root=URL(first.url)))
        assert not registry.is_ready("e1")
        await until(lambda: registry.is_ready("e1"))
        asked = len(second.seen)
        await asyncio.sleep(10 * QUICK.ready_s)
        assert len(second.seen) <= asked + 1
        assert len(first.seen) > 1


async def test_an_engine_s_new_key_is_what_it_is_asked_with() -> None:
    async with ScriptedEngine().running() as engine, probing(engine.url, key="old") as registry:
        await until(lambda: registry.is_ready("e0"))
        registry.add(replace(registry.members["e0"], api_key="new"))
        assert registry.is_ready("e0")
        await until(lambda: engine.seen[-1].headers["authorization"] == "Bearer new")
        assert registry.is_ready("e0")
