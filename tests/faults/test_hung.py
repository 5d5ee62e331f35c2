"""A file or a name server that hangs costs neither a request nor the exit of `interlock serve`."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from faults.client import ask, chat
from faults.engine import process
from support.gateway import tiny_model
from support.process import log_of, records, started

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
SLACK = 5  # the machine is shared: bounds hold on an idle one

HANGS = """
import socket, threading
resolve = socket.getaddrinfo
def hanging(host, *arguments, **options):
    if str(host).endswith(".test"):
        threading.Event().wait()
    return resolve(host, *arguments, **options)
socket.getaddrinfo = hanging
"""


@pytest.fixture
def hung_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes that start from now on, no `.test` is ever resolved."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@pytest.mark.parametrize("signals", [1, 2])
async def test_neither_a_pipe_nor_hung_names_hold_the_exit(tmp_path: Path, hung_names: None, signals: int) -> None:
    os.mkfifo(tmp_path / "engines.yaml")
    async with process("--name", "a") as engine:
        engines = [
            {"id": "a", "url": engine["url"], "kind": "llamacpp"},
            {"id": "b", "url": "http://hung.test:1", "kind": "llamacpp"},
            {"id": "c", "url": "http://pool.test:1", "kind": "llamacpp", "resolve": True},
        ]
        model = {"name": "m", "source": str(tiny_model()), "engines": engines, "engines_file": "engines.yaml"}
        with started({"models": [model], "limits": {"render_workers": 0}}, tmp_path) as serving:
            async with httpx.AsyncClient(trust_env=False) as client:
                async with asyncio.timeout(20):
                    while "reload" not in (told := (await client.get(f"{serving.admin_url}/ready")).json()):
                        await asyncio.sleep(0.1)
                assert "must be a regular file" in told["reload"]["engines_file"][0]
            answer = await ask(serving.url, chat("[[tokens=3]]"))
            answer.check()
            assert answer.done
            began_s = time.monotonic()
            for _ in range(signals):
                serving.child.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.02)
            code = await asyncio.to_thread(serving.child.wait, 40)
            assert code in ((0,) if signals == 1 else (0, 1))  # with nothing to finish it may have ended before the second
            assert time.monotonic() - began_s < SLACK
        assert [each for each in records(log_of(tmp_path)) if "Traceback" in str(each)] == []
