"""`interlock check --live`: on the engines of the settings, and on a local one that is there for just this."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gateway import tiny_model
from support.llamacpp import smollm2_file
from support.process import interlock
from support.profiles import checked, profile_of, written
from support.scripted_engine import CLOSE, HEAD, ScriptedEngine, Seen, Step, event, llama_end, llama_token
from support.vocabulary import fixed_clock

from gateway.checks.base import Report
from gateway.checks.run import Subjects, check
from gateway.formats.registry import load
from gateway.live import local_report
from gateway.profile_file import read_profile
from gateway.prompt.profile import digest

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def answer(seen: Seen) -> list[Step]:
    tools = b"[tools]" in bytes(max(token - 9, 0) for token in seen.body["prompt"] if 9 <= token < 265)
    text = CALL if tools or "grammar" in seen.body else "Hello"
    steps = [event(llama_token(text, 1)), event(llama_token("<|im_end|>", 2, 2)), event(llama_end(2))]
    return [HEAD, *steps, b"0\r\n\r\n", CLOSE]


async def run(*arguments: str) -> tuple[int, Any, str]:
    process = await asyncio.create_subprocess_exec(
        interlock(),
        "check",
        *arguments,
        env={**os.environ, "KEY": "secret-of-ours"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, json.loads(out) if out else None, err.decode()


async def test_each_engine_of_the_settings_is_asked(tmp_path: Path) -> None:
    profile = written(profile_of(tiny_model("full")), tmp_path)
    async with ScriptedEngine().running() as one, ScriptedEngine().running() as other:
        one.script = other.script = answer
        engines = [
            {"id": "a", "url": one.url, "kind": "llamacpp"},
            {"id": "b", "url": other.url, "kind": "llamacpp", "api_key_env": "KEY"},
        ]
        model = {"name": "m", "source": str(tiny_model("full")), "profile": profile, "engines": engines}
        config = tmp_path / "settings.yaml"
        config.write_text(yaml.safe_dump({"models": [model]}))
        code, told, err = await run("--config", str(config), "--live", "--json")
    (report,) = told["models"]
    assert code == 0, err
    assert report["engine"] == "a (llamacpp), b (llamacpp)"
    live = {case["name"].partition(": ")[0] for case in report["cases"] if ": live: " in case["name"]}
    assert live == {"a", "b"}
    assert [(each["engine"], each["mode"], each["asked"], each["called"], each["failed"]) for each in report["live"]] == [
        (engine, mode, 8, 8, 0) for engine in "ab" for mode in ("native", "constrained")
    ]
    assert report["grammar_tax"].keys() == {"a", "b"}
    assert {seen.headers.get("authorization") for seen in other.calls} == {"Bearer secret-of-ours"}
    assert "secret-of-ours" not in json.dumps(told) + err
    kept = read_profile(Path(profile))
    assert kept.checked is not None
    assert (kept.checked.engine, kept.checked.of) == ("a (llamacpp), b (llamacpp)", digest(kept))


@pytest.mark.parametrize("listening", [False, True])
async def test_of_an_engine_that_cannot_be_asked_nothing_is_known(tmp_path: Path, listening: bool) -> None:
    """It says nothing of the model, whose profile stays as it was."""
    profile = written(checked(profile_of(tiny_model("full"))), tmp_path)
    async with ScriptedEngine().running() as engine:
        engine.up = False
        url = engine.url if listening else "http://127.0.0.1:9"
        engines = [{"id": "a", "url": url, "kind": "llamacpp"}]
        config = tmp_path / "settings.yaml"
        source = str(tiny_model("full"))
        config.write_text(yaml.safe_dump({"models": [{"name": "m", "source": source, "profile": profile, "engines": engines}]}))
        before = read_profile(Path(profile))
        code, told, err = await run("--config", str(config), "--live", "--json")
    assert (code, told) == (1, None)
    assert "a (llamacpp) of m cannot be asked" in err
    assert "No result is kept" in err
    assert read_profile(Path(profile)) == before


async def test_a_directory_has_no_engine(tmp_path: Path) -> None:
    code, told, err = await run("--model", str(tmp_path), "--live")
    assert (code, told) == (2, None)
    assert "--config" in err


@pytest.mark.engine
@pytest.mark.timeout(180)
def test_a_local_engine_runs_for_just_this(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in (("TRIES", 1), ("THOUGHT_TOKENS", 16), ("TOKENS", 64)):
        monkeypatch.setattr(f"gateway.checks.live.{name}", fewer)
    now = fixed_clock()
    subject = Subjects(load(), now).alone(smollm2_file(), None).subject
    report: Report = local_report(subject, check(subject, at=now, interlock="0"), smollm2_file())
    assert report.passed
    assert report.engine == "local (llamacpp)"
    assert {each.mode: (each.asked, each.engine) for each in report.figures} == {"constrained": (1, "local")}
