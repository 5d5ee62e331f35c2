"""Engines that come and go while the gateway serves (rows C17 and E31 of the matrix): no answer is cut, no request lost."""

import asyncio
import contextlib
import json
import os
import random
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fakes.conforming import ConformingEngine
from fakes.sglang import FakeSglang
from fakes.vllm import FakeVllm
from faults.client import Answer, ask, chat
from faults.engine import FaultEngine
from faults.leaks import NoLeaks
from support.gateway import Served, sample, scripted, serving, settings_for, tiny_model
from support.process import ServeProcess, records, serve_process
from support.scripted_engine import ScriptedEngine

from gateway.fleet.discovery import DiscoveryRules
from gateway.fleet.resolve import ResolveTimes

pytestmark = pytest.mark.faults

SLACK = 5
TOKEN_S = 0.03
FAILED = "interlock_config_reload_failed"


def names_engines(file: Path, engines: Iterable[FaultEngine], **keys: Any) -> None:
    """Writes a file of engines as a careful program does: whole, at once."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([{"id": each.name, "url": each.url, "kind": "llamacpp", **keys} for each in engines]))
    os.replace(new, file)


@dataclass
class Place:
    """A gateway that follows a file of the engines of its model."""

    served: Served
    file: Path
    leaks: NoLeaks

    async def ask(self, text: str = "Hello") -> Answer:
        """A request that must be answered whole."""
        self.leaks.sent()
        answer = await ask(self.served.url, chat(text))
        assert answer.done, bytes(answer.raw[-500:])
        return answer

    async def fleet(self, *names: str, within_s: float = 3.0 * SLACK) -> None:
        """Waits until these engines are the model's, and ready."""
        async with asyncio.timeout(within_s):
            while [(e.id, e.usable) for e in self.served.gateway.registry.view("m").engines] != [(n, True) for n in names]:
                await asyncio.sleep(0.01)

    async def ready(self) -> dict[str, Any]:
        return dict((await self.served.client.get(f"{self.served.admin_url}/ready")).json())


@contextlib.asynccontextmanager
async def following(leaks: NoLeaks, folder: Path, *engines: FaultEngine, of: Iterable[FaultEngine] = ()) -> AsyncIterator[Place]:
    """A gateway whose file names the first engines; `of` are others, which it may name later."""
    file = folder / "engines.json"
    names_engines(file, engines)
    made = settings_for("http://127.0.0.1:1", routing={"policy": "least_outstanding"})  # no request waits for a slot
    models = tuple(model.model_copy(update={"engines": (), "engines_file": file}) for model in made.models)
    settings = made.model_copy(update={"models": models})
    async with leaks.serving(settings, *engines, *of, discovery=DiscoveryRules(poll_s=0.05)) as served:
        place = Place(served, file, leaks)
        await place.fleet(*(each.name for each in engines))
        yield place


async def test_an_engine_that_a_file_names_serves_and_one_that_it_drops_does_not(no_leaks: NoLeaks, tmp_path: Path) -> None:
    async with (
        FaultEngine("a").working() as a,
        FaultEngine("b").working() as b,
        following(no_leaks, tmp_path, a, of=[b]) as place,
    ):
        await place.ask()
        names_engines(place.file, [a, b])
        await place.fleet("a", "b")
        names_engines(place.file, [b])
        await place.fleet("b")
        answers = [await place.ask() for _ in range(3)]
        assert [len(each.seen) for each in (a, b)] == [1, 3]
        assert all(answer.text for answer in answers)
        metrics = await place.served.metrics()
        assert metrics[sample("interlock_requests_total", model="m", engine="b", dialect="openai_chat", outcome="ok")] == 3
        assert not [name for name in metrics if "'other'" in name]
        assert metrics[sample("interlock_prompt_tokens_total", model="m", engine="a")] > 0, "its last counts are scraped yet"
        await place.served.settled(sample("interlock_engine_up", model="m", engine="a"), None, within_s=3 * SLACK)
        names_engines(place.file, [a])
        await place.fleet("a")
        await place.served.settled(sample("interlock_engine_up", model="m", engine="b"), None, within_s=3 * SLACK)
        assert (await place.served.metrics())[sample("interlock_engine_up", model="m", engine="a")] == 1


async def test_removing_a_busy_engine_drops_no_stream_and_gives_it_no_new_request(no_leaks: NoLeaks, tmp_path: Path) -> None:
    async with (
        FaultEngine("a", token_s=TOKEN_S).working() as a,
        FaultEngine("b", token_s=TOKEN_S).working() as b,
        following(no_leaks, tmp_path, a, b) as place,
    ):
        streams = [asyncio.create_task(place.ask("[[tokens=40]]")) for _ in range(12)]
        while sum(each.running for each in (a, b)) < len(streams):
            await asyncio.sleep(0.01)
        names_engines(place.file, [a])
        async with asyncio.timeout(SLACK):
            while place.served.gateway.registry.view("m").engines[-1].usable:
                await asyncio.sleep(0.005)
        seen = len(b.seen)
        assert seen >= 4
        later = [asyncio.create_task(place.ask()) for _ in range(8)]
        assert b.running, "it was over too soon to tell"
        await asyncio.gather(*streams, *later)
        assert len(b.seen) == seen
        assert {each.how for each in (*a.seen, *b.seen)} == {"whole"}
        await place.fleet("a")
        assert (await place.ready())["engines"] == {"m": {"a": True}}


async def test_an_engine_that_moved_ends_what_runs_where_it_was(no_leaks: NoLeaks, tmp_path: Path) -> None:
    async with (
        FaultEngine("a", token_s=TOKEN_S).working() as old,
        FaultEngine("a").working() as new,
        following(no_leaks, tmp_path, old, of=[new]) as place,
    ):
        stream = asyncio.create_task(place.ask("[[tokens=60]]"))
        while not old.running:
            await asyncio.sleep(0.01)
        names_engines(place.file, [new])
        async with asyncio.timeout(2 * SLACK):
            while not new.seen:
                await place.ask("[[tokens=4]]")
        assert old.running, "it was over too soon to tell"
        await stream
        assert [each.how for each in old.seen][:1] == ["whole"]
        await place.fleet("a")


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_engines_come_go_and_move_every_answer_is_whole(no_leaks: NoLeaks, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FaultEngine(name, token_s=0.005).working()) for name in "abcd"]
        place = await stack.enter_async_context(following(no_leaks, tmp_path, *engines[:2], of=engines[2:]))

        async def churn() -> None:
            while True:
                named = chance.sample(engines, chance.randrange(1, 4))
                ids = chance.sample("abcd", len(named)) if chance.random() < 0.5 else [each.name for each in named]
                lines = [{"id": at, "url": each.url, "kind": "llamacpp"} for at, each in zip(ids, named, strict=True)]
                place.file.with_suffix(".new").write_text(json.dumps(lines))
                os.replace(place.file.with_suffix(".new"), place.file)
                await asyncio.sleep(chance.uniform(0.05, 0.4))

        async def client() -> None:
            for _ in range(15):
                await place.ask(f"[[tokens={chance.randrange(2, 40)}]]")

        churning = asyncio.create_task(churn())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(client())
        finally:
            churning.cancel()
        assert {seen.how for each in engines for seen in each.seen} == {"whole"}
        assert len([each for each in engines if each.seen]) > 2
        names_engines(place.file, engines[:1])
        await place.fleet("a")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {id: a, url: 'http://h:1', kind: lamacpp}", "engines.json:1:30: [0].kind: unknown kind of engine"),
        ("- {id: a", "not valid YAML"),
        ("", "must be a list of engines"),
        (None, "No such file"),
    ],
)
async def test_a_bad_file_leaves_the_engines_and_is_shown(no_leaks: NoLeaks, tmp_path: Path, text: str | None, says: str) -> None:
    async with FaultEngine("a", token_s=TOKEN_S).working() as a, following(no_leaks, tmp_path, a) as place:
        stream = asyncio.create_task(place.ask())
        if text is None:
            place.file.unlink()
        else:
            place.file.write_text(text)
        await place.served.settled(sample(FAILED, origin="engines_file"), 1.0, within_s=3 * SLACK)
        await asyncio.gather(stream, *(place.ask() for _ in range(4)))
        ready = await place.ready()
        assert (ready["status"], ready["engines"]) == ("ready", {"m": {"a": True}})
        assert says in ready["reload"]["engines_file"][0]
        public = await place.served.client.get("/ready")
        assert public.json()["reload"] == ["engines_file"]
        assert str(tmp_path) not in public.text
        assert no_leaks.log.getvalue().count("the file is not taken") == 1
        assert says in no_leaks.log.getvalue()
        names_engines(place.file, [a])
        await place.served.settled(sample(FAILED, origin="engines_file"), 0.0, within_s=3 * SLACK)
        assert "reload" not in await place.ready()


class _At(FaultEngine):
    """An engine at another loopback address."""

    def __init__(self, host: str, **keys: Any) -> None:
        super().__init__(host, **keys)
        self.host = host

    async def _listen(self, port: int) -> None:
        self._server = await self._loop.create_server(lambda: self._connection(self._open), self.host, port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{self.host}:{self._port}"


@contextlib.asynccontextmanager
async def named(
    leaks: NoLeaks, answers: list[str], every_s: float = 0.2
) -> AsyncIterator[tuple[Place, list[FaultEngine], list[list[str] | OSError]]]:
    """Engines at 127.0.0.2 to 4 with one port, and a gateway that knows them by a name. The last value is what the name server
    says: a list in it, or an error."""
    said: list[list[str] | OSError] = [answers]

    async def resolver(host: str) -> list[str]:
        assert host == "engines.test"
        if isinstance(said[0], OSError):
            raise said[0]
        return said[0]

    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(_At("127.0.0.2", token_s=TOKEN_S).working())
        port = int(first.url.rpartition(":")[2])
        others = [await stack.enter_async_context(_At(f"127.0.0.{at}", token_s=TOKEN_S).working(port)) for at in (3, 4)]
        engines: list[FaultEngine] = [first, *others]
        rules = DiscoveryRules(resolver, ResolveTimes(every_s=every_s, retry_s=every_s, gap_s=0.05), poll_s=1.0)
        settings = settings_for(f"http://engines.test:{port}", engine={"resolve": True})
        served = await stack.enter_async_context(leaks.serving(settings, *engines, discovery=rules))
        yield Place(served, Path(), leaks), engines, said


async def test_a_name_s_new_address_is_used_and_the_old_one_ends_what_runs(no_leaks: NoLeaks) -> None:
    async with named(no_leaks, ["127.0.0.2", "127.0.0.3"]) as (place, (a, b, c), said):
        await place.fleet("e@127.0.0.2", "e@127.0.0.3")
        streams = [asyncio.create_task(place.ask("[[tokens=60]]")) for _ in range(6)]
        while sum(each.running for each in (a, b)) < 6:
            await asyncio.sleep(0.01)
        said[0] = ["127.0.0.3", "127.0.0.4"]
        began_s = asyncio.get_running_loop().time()
        while not c.seen:
            await asyncio.gather(*(place.ask("[[tokens=4]]") for _ in range(3)))
        assert asyncio.get_running_loop().time() - began_s < 1.2 * SLACK
        await asyncio.gather(*streams)
        await place.fleet("e@127.0.0.3", "e@127.0.0.4")
        assert {each.how for each in (*a.seen, *b.seen, *c.seen)} == {"whole"}


@pytest.mark.parametrize("error", [OSError(-3, "Temporary failure in name resolution"), OSError(-2, "Name not known"), None])
async def test_a_name_server_that_fails_costs_no_request(no_leaks: NoLeaks, error: OSError | None) -> None:
    async with named(no_leaks, ["127.0.0.2", "127.0.0.3"], every_s=0.05) as (place, _, said):
        await place.fleet("e@127.0.0.2", "e@127.0.0.3")
        said[0] = error if error is not None else []
        await place.served.settled(sample(FAILED, origin="dns"), 1.0, within_s=3 * SLACK)
        for _ in range(5):
            await asyncio.gather(*(place.ask("[[tokens=4]]") for _ in range(4)))
        ready = await place.ready()
        assert ready["status"] == "ready"
        assert ready["reload"]["dns"][0].startswith("engines.test: ")
        assert (await place.served.client.get("/ready")).json()["reload"] == ["dns"]
        await place.fleet("e@127.0.0.2", "e@127.0.0.3")


async def test_a_connection_that_cannot_be_made_has_the_name_asked_for_again(no_leaks: NoLeaks) -> None:
    async with named(no_leaks, ["127.0.0.2", "127.0.0.3"], every_s=600.0) as (place, (a, _, c), said):
        await place.fleet("e@127.0.0.2", "e@127.0.0.3")
        said[0] = ["127.0.0.3", "127.0.0.4"]
        await a.fall()
        for _ in range(4):
            await place.ask("[[tokens=4]]")
        await place.fleet("e@127.0.0.3", "e@127.0.0.4")
        await asyncio.gather(*(place.ask("[[tokens=4]]") for _ in range(4)))
        assert c.seen


@pytest.mark.parametrize(("make", "kind"), [(FakeVllm, "vllm"), (lambda: FakeSglang(incremental=False), "sglang")])
async def test_each_rank_is_an_engine_and_the_server_is_told_which(make: Any, kind: str) -> None:
    async with make().running() as engine, serving(settings_for(engine.url, kind=kind, engine={"ranks": 3})) as served:
        assert isinstance(engine, ConformingEngine)
        async with asyncio.timeout(3 * SLACK):
            while [each.usable for each in served.gateway.registry.view("m").engines] != [True] * 3:
                await asyncio.sleep(0.01)
        for rank in range(3):  # the others are drained: which one is chosen is not what is tested here
            for other in range(3):
                served.gateway.registry.drain(f"e.{other}", other != rank)
            assert (await served.chat(max_tokens=8)).status_code == 200
        told = [seen.headers.get("x-data-parallel-rank", seen.body.get("routed_dp_rank")) for seen in engine.calls]
        assert [int(each) for each in told if each is not None] == [0, 1, 2]
        assert {key for key in await served.metrics() if key.startswith("interlock_inflight_requests")} == {
            sample("interlock_inflight_requests", model="m", engine=f"e.{rank}") for rank in range(3)
        }


async def test_a_server_of_ranks_that_dies_costs_no_request_more_than_one_try(no_leaks: NoLeaks) -> None:
    async with FaultEngine("a").working() as a, FaultEngine("b").working() as b:
        engines = [{"id": "r", "url": a.url, "kind": "vllm", "ranks": 4}, {"id": "b", "url": b.url, "kind": "vllm"}]
        settings = settings_for("", kind="vllm", engines=engines)
        async with no_leaks.serving(settings, a, b) as served:
            place = Place(served, Path(), no_leaks)
            await place.fleet("r.0", "r.1", "r.2", "r.3", "b")
            await a.fall()
            await asyncio.gather(*(place.ask("[[tokens=4]]") for _ in range(3)))
            assert {record["attempts"] for record in no_leaks.records} <= {1, 2}
            assert len(b.seen) == 3


async def test_a_rank_s_server_that_is_no_server_of_ranks_is_not_told_of_any() -> None:
    async with scripted() as (engine, served):
        assert (await served.chat()).status_code == 200
        assert "x-data-parallel-rank" not in engine.calls[0].headers


@contextlib.asynccontextmanager
async def process(settings: dict[str, Any], folder: Path) -> AsyncIterator[ServeProcess]:
    """The command, in a process of its own, while this loop serves its engines."""
    running = serve_process(settings, folder)
    served = await asyncio.to_thread(running.__enter__)
    try:
        yield served
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def told(served: ServeProcess) -> dict[str, Any]:
    def read() -> Any:
        with urllib.request.urlopen(f"{served.admin_url}/ready", timeout=5) as answer:
            return json.load(answer)

    return dict(await asyncio.to_thread(read))


async def test_the_settings_file_is_read_again_when_it_changes_and_on_sighup(tmp_path: Path) -> None:
    model = {"name": "m", "source": str(tiny_model())}
    async with ScriptedEngine().running() as a, ScriptedEngine().running() as b:
        engines = [{"id": name, "url": each.url, "kind": "llamacpp"} for name, each in (("a", a), ("b", b))]
        settings = {"limits": {"render_workers": 0}, "models": [{**model, "engines": engines[:1]}]}
        config = tmp_path / "interlock.yaml"

        async def until(**expected: Any) -> None:
            async with asyncio.timeout(5 * SLACK):
                while {key: value for key, value in (await told(served)).items() if key in expected} != expected:
                    await asyncio.sleep(0.05)

        async with process(settings, tmp_path) as served, httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
            running = yaml.safe_load(config.read_text())
            config.write_text(
                yaml.safe_dump({**running, "models": [{**model, "engines": engines}], "timeouts": {"connect_s": 9}})
            )
            await until(engines={"m": {"a": True, "b": True}})
            config.write_text("models: [{name: m}]")
            problems = ["engines: is missing: list the engines, or name an `engines_file`"]
            problems += ["source: is missing: give a GGUF file or a model directory, or set `format: engine`"]
            await until(status="ready", reload={"settings": [f"{config}:1:10: models[0].{each}" for each in problems]})
            config.write_text(yaml.safe_dump({**running, "models": [{**model, "engines": engines[1:]}]}))
            os.utime(config, ns=(0, 0))
            os.kill(served.pid, signal.SIGHUP)
            await until(engines={"m": {"b": True}})
            assert "reload" not in await told(served)
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            assert (len(a.calls), len(b.calls)) == (0, 1)
        log = records(tmp_path / "interlock.log")
        assert [each["keys"] for each in log if each["event"] == "settings that need a restart are not taken"] == [
            ["timeouts.connect_s"]
        ]
        assert len([each for each in log if each["event"] == "the file is not taken: what it said before stays"]) == 1
