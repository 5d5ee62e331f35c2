"""Child processes of a measurement: started, waited for, their CPU time read, ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path


class BenchError(Exception):
    """Something did not start, or did not answer."""


def cpu_s(pid: int) -> float:
    """CPU seconds that this process and its living descendants have used. The scheduler's own counts are in nanoseconds; where
    the kernel lacks them, ticks of 10 ms."""
    return sum(_process_cpu_s(process) for process in tree(pid))


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _process_cpu_s(pid: int) -> float:
    try:
        exact_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
        if exact_ns:
            return exact_ns / 1e9
    except OSError:  # the kernel does not count so, or a thread has ended just now
        pass
    try:
        fields = _stat(pid)
    except OSError:  # the process has ended just now
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(port: int, path: str) -> None:
    """An empty POST, on loopback."""
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST"), timeout=5).close()


@contextlib.contextmanager
def started(name: str, command: Sequence[str], ready_url: str, folder: Path, limit_s: float = 30) -> Iterator[int]:
    """A Python child process that is ready: its URL answers 200. Gives its id, and ends it. Raises BenchError."""
    log = folder / f"{name}.log"
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # ours has folders named as packages are
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, *command], stdout=out, stderr=out, env=environ, start_new_session=True)
    try:
        _wait_ready(process, ready_url, log, limit_s)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):  # it raises for other statuses, as an OSError
            return
        time.sleep(0.05)
    raise BenchError(f"{url} did not become ready:\n{log.read_text(errors='replace')[-2000:]}")
