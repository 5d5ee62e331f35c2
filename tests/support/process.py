"""The gateway as its operator runs it: `interlock serve --config FILE` in a process of its own, on free loopback ports.

Whoever stops it learns that it ended as it should (exit code 0), and gets its log: each line of it is one JSON object.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

START_LIMIT_S = 40.0
STOP_LIMIT_S = 10.0
_POLL_S = 0.05


@dataclass(slots=True)
class ServeProcess:
    """A running gateway. `log` is filled when it has ended."""

    url: str
    admin_url: str
    child: "subprocess.Popen[bytes]"
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def access_log(self) -> list[dict[str, Any]]:
        """The records of requests, in the order of their ends."""
        return [record for record in self.log if record["event"] == "request"]


def interlock() -> str:
    """The installed command, beside this interpreter."""
    command = Path(sys.executable).with_name("interlock")
    assert command.exists(), "the project is not installed here: pip install -e ."
    return str(command)


@contextmanager
def serve_process(settings: dict[str, Any], folder: Path) -> Iterator[ServeProcess]:
    """A gateway with these settings, ready; it is told to end with SIGTERM. The ports are free ones, read from its log."""
    with started(settings, folder) as process:
        yield process
        process.child.send_signal(signal.SIGTERM)
        code = process.child.wait(STOP_LIMIT_S)
        assert code == 0, f"it ended with code {code}:\n{log_of(folder).read_text()[-2000:]}"
        process.log += records(log_of(folder))


@contextmanager
def started(settings: dict[str, Any], folder: Path) -> Iterator[ServeProcess]:
    """The same, ended by whoever uses it; it is gone afterwards whatever happens."""
    config, log = folder / "interlock.yaml", log_of(folder)
    server = {"port": 0, "admin_port": 0, "drain_s": 2, **settings.get("server", {})}
    config.write_text(yaml.safe_dump({**settings, "server": server}))
    with log.open("wb") as out:
        child = subprocess.Popen([interlock(), "serve", "--config", str(config)], stdout=out, stderr=out)
    try:
        yield _ready(child, log)
    finally:
        child.kill()
        child.wait()


def log_of(folder: Path) -> Path:
    """Its log, one JSON object a line."""
    return folder / "interlock.log"


def records(log: Path) -> list[dict[str, Any]]:
    """The log's complete lines."""
    return [json.loads(line) for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _ready(child: "subprocess.Popen[bytes]", log: Path) -> ServeProcess:
    """Waits for the ports to be announced, then for `/ready`."""
    limit_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit_s:
        assert child.poll() is None, f"it ended with code {child.returncode}:\n{log.read_text()[-2000:]}"
        serving = [record for record in records(log) if record["event"] == "serving"]
        if serving:
            url, admin_url = (f"http://127.0.0.1:{serving[0][port]}" for port in ("port", "admin_port"))
            if _answers(f"{url}/ready"):
                return ServeProcess(url, admin_url, child)
        time.sleep(_POLL_S)
    raise AssertionError(f"it was not ready in {START_LIMIT_S:g} s:\n{log.read_text()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
