"""`interlock up`: what it prints is true and works, and nothing is left when it ends, however it ends."""

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from support.gateway import events_of, tiny_model
from support.llamacpp import smollm2_file
from support.up_process import alive, children, up_process

from engines.local import EngineStartError, LocalEngine
from gateway import up as module
from gateway.process import bind_both
from gateway.server.listen import port_of
from gateway.settings_parts import ServerSettings
from gateway.up import NotUp, up

TWO_ENGINES = Path(__file__).parent.parent / "docs" / "two-engines.md"


@pytest.mark.engine
@pytest.mark.timeout(120)
async def test_what_it_prints_works(tmp_path: Path) -> None:
    with up_process(tmp_path) as running:
        await running.shown("Ctrl-C ends it")
        shown = running.output.read_text()
        engine = running.engine()
        await run_the_curl_line(shown)
        await asyncio.to_thread(run_the_python_lines, shown)
        await read_the_metrics(shown)
        running.child.send_signal(signal.SIGTERM)
        code = await running.ended()
    assert code == 0, running.output.read_text()
    assert engine is not None
    assert not alive(engine)
    assert re.search(r"The engine is ready after \d+\.\d s\.", shown)
    assert module.GREETING in shown
    assert re.search(r"\d+ tokens, first after \d+\.\d\d s \(TTFT\), then \d+\.\d tokens per second\.", shown)
    said = running.output.read_text()
    assert "Finishing the answers that run; Ctrl-C again cuts them." in said
    assert said.endswith("The engine has ended.\n\nEnded: the gateway and its engine.\n")


async def run_the_curl_line(shown: str) -> None:
    words = shlex.split(shown[shown.index("curl -N") : shown.index("or from Python")].replace("\\\n", " "))
    url, header, body = words[2], words[words.index("-H") + 1], words[words.index("-d") + 1]
    name, _, value = header.partition(": ")
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        response = await client.post(url, content=body, headers={name: value})
    events = events_of(response.content)
    assert events[-1] == "[DONE]"
    assert "".join(choice["delta"].get("content") or "" for chunk in events[:-1] for choice in chunk["choices"])


async def read_the_metrics(shown: str) -> None:
    urls = re.findall(r"http://\S+/metrics", shown)
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        answers = [await client.get(url) for url in urls]
    assert len(set(urls)) == 2
    assert all("interlock_requests_total" in answer.text for answer in answers)


def run_the_python_lines(shown: str) -> None:
    lines = shown[shown.index("  from openai") : shown.index("Metrics:")]
    program = "\n".join(line.removeprefix("  ") for line in lines.splitlines())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.engine
async def test_ctrl_c_while_the_engine_starts(tmp_path: Path) -> None:
    with up_process(tmp_path) as running:
        await running.shown("Starting the engine")
        async with asyncio.timeout(10):
            while (engine := running.engine()) is None:
                await asyncio.sleep(0.02)
        running.child.send_signal(signal.SIGINT)
        assert await running.ended() == 0, running.output.read_text()
        assert not alive(engine)
    assert "Traceback" not in running.output.read_text()


@pytest.mark.engine
async def test_a_model_cut_after_its_metadata_is_one_clear_line(tmp_path: Path) -> None:
    model = tmp_path / "cut.gguf"
    with smollm2_file().open("rb") as whole:
        model.write_bytes(whole.read(4_000_000))
    with up_process(tmp_path, "--model", str(model)) as running:
        assert await running.ended(40) == 1
        assert children(running.child.pid) == []
    lines = running.output.read_text().splitlines()
    assert lines[-1].startswith(f"interlock: The engine did not start: error: llama.cpp cannot serve {model}")
    assert [line for line in lines if line.startswith("interlock:")] == lines[-1:]
    assert "Traceback" not in running.output.read_text()


@pytest.mark.parametrize("cut", [4, 100_000])
async def test_a_model_cut_in_its_metadata_is_one_line(tmp_path: Path, cut: int) -> None:
    model = tmp_path / "cut.gguf"
    with smollm2_file().open("rb") as whole:
        model.write_bytes(whole.read(cut))
    with up_process(tmp_path, "--model", str(model)) as running:
        assert await running.ended(20) == 1
    assert re.fullmatch(rf"interlock: {model}: .+\n", running.output.read_text())


class Running:
    """`up` in this process, with a fake engine below it."""

    def __init__(self, engines: int = 1) -> None:
        self.stop = asyncio.Event()
        self.text = io.StringIO()
        self.sockets = bind_both(ServerSettings(port=0, admin_port=0))
        console = Console(file=self.text, width=200)
        self.task = asyncio.create_task(
            up(
                self.stop,
                model=tiny_model(),
                name="tiny",
                sockets=self.sockets,
                environ=os.environ,
                console=console,
                engines=engines,
            )
        )

    async def shown(self, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in self.text.getvalue():
                if self.task.done():
                    self.task.result()
                    raise AssertionError(self.text.getvalue())
                await asyncio.sleep(0.02)


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[pytest.MonkeyPatch]:
    """The local engine is the fake one; afterwards none of it is left."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent.parent), str(Path(__file__).parent)]))
    monkeypatch.setattr(module, "LocalEngine", functools.partial(LocalEngine, launch="support.fake_llama"))
    before = set(children(os.getpid()))
    yield monkeypatch
    assert set(children(os.getpid())) <= before


@contextlib.asynccontextmanager
async def started(fake: pytest.MonkeyPatch, answer: str, engines: int = 1) -> AsyncIterator[Running]:
    fake.setenv("FAKE_ANSWER", answer)
    running = Running(engines)
    try:
        yield running
    finally:
        running.stop.set()
        await asyncio.gather(running.task, return_exceptions=True)
        for each in running.sockets:
            each.close()


async def test_it_greets_serves_and_ends(fake: pytest.MonkeyPatch) -> None:
    async with started(fake, "hello") as running:
        await running.shown("Ctrl-C ends it")
        port = port_of(running.sockets[0])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            listed = (await client.get("/v1/models")).json()
        running.stop.set()
        await running.task
    assert listed["data"][0]["id"] == "tiny"
    shown = running.text.getvalue()
    assert "tiny: Hello, I am a test." in shown
    assert "3 tokens, first after" in shown
    assert json.loads(shlex.split(shown[shown.index("-d '") : shown.index("or from Python")])[1])["model"] == "tiny"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("nothing", "the engine gave no answer to the greeting"),
        ("refused", "the greeting failed: "),
        ("reset", "the greeting failed: The engine closed the connection before its answer was complete."),
        ("broken", "the greeting failed: The engine's answer ended in the middle."),
    ],
)
async def test_a_greeting_that_fails_ends_it_with_one_line(fake: pytest.MonkeyPatch, answer: str, message: str) -> None:
    async with started(fake, answer) as running:
        with pytest.raises(NotUp) as caught:
            await asyncio.wait_for(running.task, 20)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


async def test_a_gateway_that_cannot_be_reached_is_one_line(fake: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: object) -> None:
        raise httpx.ConnectError("")

    fake.setattr(module, "_greet", unreachable)
    async with started(fake, "hello") as running:
        with pytest.raises(NotUp, match=r"^the greeting failed: ConnectError$"):
            await asyncio.wait_for(running.task, 20)


async def test_an_engine_that_is_never_ready_is_one_line(fake: pytest.MonkeyPatch) -> None:
    fake.setattr(module, "_READY_S", 0.3)
    fake.setattr("gateway.fleet.registry.Registry.set_ready", lambda *_: False)
    async with started(fake, "hello") as running:
        with pytest.raises(NotUp, match=r"^the engine was not ready within 0\.3 s$"):
            await asyncio.wait_for(running.task, 20)


async def test_an_engine_that_does_not_start_is_its_own_error(fake: pytest.MonkeyPatch) -> None:
    fake.setattr(module, "LocalEngine", functools.partial(LocalEngine, launch="support.fake_llama", start_limit_s=1.0))
    async with started(fake, "down") as running:
        with pytest.raises(EngineStartError, match="not ready within 1 s"):
            await asyncio.wait_for(running.task, 20)


async def test_it_can_be_stopped_while_the_engine_starts_and_while_it_greets(fake: pytest.MonkeyPatch) -> None:
    async with started(fake, "down") as running:
        await running.shown("Starting the engine")
        running.stop.set()
        await asyncio.wait_for(running.task, 10)
    async with started(fake, "silent") as running:
        await running.shown(module.GREETING)
        running.stop.set()
        await asyncio.wait_for(running.task, 10)
    assert "Ctrl-C ends it" not in running.text.getvalue()


async def test_an_engine_that_dies_is_told_and_started_again(fake: pytest.MonkeyPatch) -> None:
    async with started(fake, "hello") as running:
        await running.shown("Ctrl-C ends it")
        (engine,) = children(os.getpid(), "support.fake_llama")
        os.kill(engine, signal.SIGKILL)
        await running.shown("The engine died and is started again (")
        async with asyncio.timeout(20):
            while running.text.getvalue().count("The engine is ready") < 2:
                await asyncio.sleep(0.05)


@pytest.mark.engine
@pytest.mark.timeout(180)
async def test_of_two_engines_one_goes_on_with_the_answer_of_the_other(tmp_path: Path) -> None:
    """What docs/two-engines.md shows, with its request: the engine of the headers is killed, by the number that was printed."""
    with up_process(tmp_path, "--engines", "2") as running:
        await running.shown("Ctrl-C ends it")
        shown = running.output.read_text()
        pids = {id: int(pid) for id, pid in re.findall(r"^Engine (\S+), process (\d+), is ready", shown, re.MULTILINE)}
        assert list(pids) == ["local-1", "local-2"]
        admin = re.findall(r"(http://\S+)/fleet", shown)[0]
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            body = json.loads(re.findall(r"-d '(\{.*?\})' \|", TWO_ENGINES.read_text(), re.DOTALL)[0])
            body |= {"ignore_eos": True, "max_tokens": 200, "stream_options": {"include_usage": True}}
            async with client.stream("POST", f"{running.url}/v1/chat/completions", json=body) as response:
                began = response.headers["x-interlock-engine"]
                data = b""
                async for piece in response.aiter_bytes():
                    if not data:
                        os.kill(pids[began], signal.SIGKILL)
                    data += piece
            explained = (await client.get(f"{admin}/explain", params={"last": 1})).json()["requests"][0]
        running.child.send_signal(signal.SIGTERM)
        assert await running.ended() == 0, running.output.read_text()
        assert children(running.child.pid) == []
    events = events_of(data)
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == 200
    assert [(each["engine"], each["why"]) for each in explained["attempts"]][1:] == [
        (next(iter(pids.keys() - {began})), "resume")
    ]
    assert f"Engine {began} died and is started again" in running.output.read_text()


async def test_of_several_engines_all_are_started_and_all_end(fake: pytest.MonkeyPatch) -> None:
    async with started(fake, "hello", engines=3) as running:
        await running.shown("Ctrl-C ends it")
        pids = re.findall(r"^Engine local-[123], process (\d+), is ready", running.text.getvalue(), re.MULTILINE)
        assert sorted(map(int, pids)) == sorted(children(os.getpid(), "support.fake_llama"))
        running.stop.set()
        await running.task
    assert len(pids) == 3
    assert all(f"Engine local-{number} has ended." in running.text.getvalue() for number in (1, 2, 3))
