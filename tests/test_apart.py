"""Work that never ends holds up neither the loop nor the exit."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from engines.base import Call
from gateway.apart import Names, apart
from gateway.errors import EngineTimeout, EngineUnreachable, SettingsError
from gateway.settings_tree import read_list
from gateway.upstream import Upstream

CALL = Call("/completion", b"{}")

HANGING = """
import asyncio, threading
from gateway import process
from gateway.apart import apart

async def main(stop):
    hung = asyncio.create_task(apart(threading.Event().wait))
    await asyncio.sleep(0.1)
    hung.cancel()
    return 3

raise SystemExit(process.run(main))
"""


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A name server that answers for no `.test`: the names that were asked for."""
    asked: list[str] = []
    over = threading.Event()
    resolve = socket.getaddrinfo

    def hanging(host: str, *arguments: Any, **options: Any) -> Any:
        if str(host).endswith(".test"):
            asked.append(host)
            over.wait()
            raise socket.gaierror(-3, "Temporary failure")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    yield asked
    over.set()


async def test_what_was_found_and_what_went_wrong_come_back() -> None:
    assert await apart(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await apart(lambda: 1 // 0)


def test_a_thread_that_hangs_does_not_hold_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], timeout=15, check=False)
    assert done.returncode == 3


async def test_a_name_server_that_hangs_ends_a_call_within_the_time_to_connect(hung: list[str]) -> None:
    loop = asyncio.get_running_loop()
    async with Upstream() as upstream:
        began_s = loop.time()
        opening = [upstream.open(URL("http://hung.test:1/x"), CALL, api_key=None, connect_s=0.3) for _ in range(3)]
        ended = await asyncio.gather(*opening, return_exceptions=True)
        assert loop.time() - began_s < 3
        closing_s = loop.time()
    assert loop.time() - closing_s < 3
    assert [type(each) for each in ended] == [EngineTimeout] * 3
    assert {each.stage for each in ended if isinstance(each, EngineTimeout)} == {"connect"}
    assert hung == ["hung.test"]  # one thread, however many wait


async def test_a_name_is_asked_for_again_once_an_answer_came(hung: list[str]) -> None:
    names = Names()
    waiting = [asyncio.create_task(names.addresses("hung.test")) for _ in range(2)]
    await asyncio.sleep(0.05)
    waiting[0].cancel()
    await asyncio.sleep(0.05)
    assert hung == ["hung.test"]
    await names.close()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    assert "127.0.0.1" in await names.addresses("localhost")
    await names.close()


async def test_a_name_that_is_none_cannot_be_reached() -> None:
    async with Upstream() as upstream:
        with pytest.raises(EngineUnreachable):
            await upstream.open(URL("http://no.such.host.invalid:1/x"), CALL, api_key=None, connect_s=15)


def test_a_pipe_is_no_file_of_settings(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "engines.yaml")
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(SettingsError, match="must be a regular file"):
            read_list(path)
