"""The launcher: one clear line where it cannot serve, and nothing left running."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.llamacpp import EngineUnderTest, free_port, smollm2_file, wait_ready

COMMAND = [sys.executable, "-m", "engines.launch.llamacpp"]


def failed(*arguments: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False, env=env)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    model = tmp_path / "none.gguf"
    assert failed("--model", str(model), "--port", "1") == f"error: cannot read {model}: No such file or directory\n"


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    model = tmp_path / "text.gguf"
    model.write_text("hello")
    assert failed("--model", str(model), "--port", "1") == f"error: {model} is not a GGUF file\n"


@pytest.mark.engine
def test_a_damaged_model_ends_with_a_clear_line(tmp_path: Path) -> None:
    model = tmp_path / "cut.gguf"
    with smollm2_file().open("rb") as whole:
        model.write_bytes(whole.read(100_000))
    last = failed("--model", str(model), "--port", str(free_port())).splitlines()[-1]
    assert last.startswith(f"error: llama.cpp cannot serve {model}")


@pytest.mark.engine
@pytest.mark.parametrize(("policy", "spins"), [(None, "'0'"), ("active", "'30000000000'")])
def test_its_threads_sleep_while_they_wait_unless_they_are_told_to_spin(tmp_path: Path, policy: str | None, spins: str) -> None:
    model = tmp_path / "no.gguf"
    model.write_bytes(b"GGUF")
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= {"OMP_DISPLAY_ENV": "verbose"} | ({"OMP_WAIT_POLICY": policy} if policy else {})
    assert f"GOMP_SPINCOUNT = {spins}" in failed("--model", str(model), "--port", str(free_port()), env=env)


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    model = tmp_path / "text.gguf"
    model.write_bytes(b"GGUF")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert failed("--model", str(model), "--port", str(port)) == (
            f"error: port {port} on 127.0.0.1 cannot be used: Address already in use\n"
        )


def test_a_missing_wheel_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('no')")
    model = tmp_path / "text.gguf"
    model.write_bytes(b"GGUF")
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    said = failed("--model", str(model), "--port", str(free_port()), env={**os.environ, "PYTHONPATH": path})
    assert said == "error: xllamacpp is not installed: `pip install '.[local]'` in a clone brings it\n"


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A launcher that answers, and its port."""
    port = free_port()
    command = [*COMMAND, "--model", str(smollm2_file()), "--port", str(port), "--slots", "1", "--ctx", "256", *arguments]
    with subprocess.Popen(command) as process:
        try:
            wait_ready(port, process)
            yield process, port
        finally:
            process.kill()


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_though_an_answer_runs(number: signal.Signals) -> None:
    body = b'{"prompt":[1,4093],"n_predict":200,"stream":true,"ignore_eos":true}'
    with started() as (process, port):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.readline().startswith(b"data: ")
            process.send_signal(number)
            assert process.wait(2) == 0


@pytest.mark.engine
def test_it_ends_when_it_is_no_child_of_the_named_parent() -> None:
    with started("--parent", str(os.getpid() + 1)) as (process, _):
        assert process.wait(3) == 0


@pytest.mark.engine
def test_no_web_page_may_read_its_answers(local_engine: EngineUnderTest) -> None:
    request = urllib.request.Request(f"{local_engine.url}/slots", headers={"Origin": "http://page.example"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] not in ("*", "http://page.example", "null")


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is not this machine")
def test_it_listens_elsewhere_only_where_it_is_told_to(local_engine: EngineUnderTest) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", local_engine.port), timeout=5)
    with started("--host", "0.0.0.0") as (_, port), socket.create_connection(("127.0.0.2", port), timeout=5):
        pass
