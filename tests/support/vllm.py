"""The real vLLM on this machine's CPU, with SmolLM2 135M, as `scripts/vllm` has set both up."""

import contextlib
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.llamacpp import free_port, wait_ready

HOME = Path(__file__).parent.parent.parent / ".cache" / "vllm"
START_LIMIT_S = 600.0
CONTEXT_TOKENS, BLOCK_TOKENS = 2048, 32
ALIAS = "smollm2"
_OPTIONS = ("--dtype", "float32", "--max-num-seqs", "8", "--enforce-eager", "--enable-prompt-tokens-details")
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class VllmUnderTest:
    """A running vLLM at `url` (no slash at its end), and the folder of its model."""

    url: str
    model: Path

    def metric(self, name: str) -> float:
        """A sample of its own metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            found = re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@contextmanager
def running_vllm(*options: str, port: int | None = None) -> Iterator[VllmUnderTest]:
    """Starts one, with more options, and ends it, with the processes that it has made."""
    python, model, port = HOME / "venv" / "bin" / "python", HOME / "smollm2", port or free_port()
    assert python.exists(), "scripts/vllm has not been run"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", ALIAS]
    command += ["--host", "127.0.0.1", "--port", str(port), *_OPTIONS]
    command += ["--max-model-len", str(CONTEXT_TOKENS), "--block-size", str(BLOCK_TOKENS), *options]
    log = HOME / "server.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, env={**os.environ, **_ENVIRONMENT}, stdout=out, stderr=out, start_new_session=True, cwd=HOME
        )
    try:
        wait_ready(port, child, START_LIMIT_S)
        yield VllmUnderTest(f"http://127.0.0.1:{port}", model)
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.fixture(scope="session")
def vllm() -> Iterator[VllmUnderTest]:
    """The vLLM that the tests of a run share. Leave it as you found it; its prefix cache is as earlier tests have left it."""
    with running_vllm() as engine:
        yield engine
