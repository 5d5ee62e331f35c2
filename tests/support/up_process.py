"""`interlock up` in a process of its own, with the real engine below it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from support.llamacpp import free_port
from support.process import interlock

UP_LIMIT_S = 50.0


@dataclass(slots=True)
class UpProcess:
    """A running `interlock up`."""

    child: "subprocess.Popen[bytes]"
    url: str
    output: Path

    def engine(self) -> int | None:
        """The process id of the engine below it."""
        found = children(self.child.pid, "engines.launch")
        return found[0] if found else None

    async def shown(self, text: str, limit_s: float = UP_LIMIT_S) -> None:
        """Returns when it has printed this."""
        async with asyncio.timeout(limit_s):
            while text not in self.output.read_text():
                assert self.child.poll() is None, self.output.read_text()
                await asyncio.sleep(0.05)

    async def ready(self, limit_s: float = UP_LIMIT_S) -> None:
        """Returns when `/ready` says so."""
        async with httpx.AsyncClient(base_url=self.url, timeout=5, trust_env=False) as client, asyncio.timeout(limit_s):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.05)

    async def ended(self, limit_s: float = 15.0) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.to_thread(self.child.wait, limit_s)


@contextmanager
def up_process(folder: Path, *arguments: str) -> Iterator[UpProcess]:
    """Starts it on a free port; whatever happens, it and its engine are gone afterwards."""
    port, output = free_port(), folder / "up.txt"
    with output.open("wb") as out:
        command = [interlock(), "up", "--port", str(port), *arguments]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    process = UpProcess(child, f"http://127.0.0.1:{port}", output)
    try:
        yield process
    finally:
        for pid in (*children(child.pid), child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()


def children(pid: int, module: str = "") -> list[int]:
    """The children of a process, or those whose command names a module. Linux tells them by the thread that started each."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [child for child in found if module in command_of(child)]


def command_of(pid: int) -> str:
    """Its command line; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
