"""An engine whose tokenizer is not its model's is found before the first request, as the operator and the client see it."""

import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.gateway import PAIR, sample, serving, settings_for, tiny_model
from support.gguf_writer import Field, Typed, gguf
from support.llamacpp import EngineUnderTest, smollm2_file
from support.real_vocabularies import model_directory, qwen_vocabulary
from support.scripted_engine import ScriptedEngine, chat

from gateway.prompt.gguf import read_metadata
from gateway.prompt.model_files import DEFAULT
from gateway.prompt.source import read_model

MISMATCH = sample("interlock_engine_tokenizer_mismatch", **PAIR)


async def test_no_request_reaches_an_engine_with_another_tokenizer_and_ready_says_why() -> None:
    async with ScriptedEngine().running() as engine:
        engine.answers["/tokenize"] = {"tokens": [1, 2, 3]}
        async with serving(settings_for(engine.url), wait=False) as served:
            await served.settled(MISMATCH, 1)
            refused = await served.chat()
            told = [await served.client.get(f"{url}/ready") for url in (served.url, served.admin_url)]
            assert engine.calls == []
            del engine.answers["/tokenize"]
            await served.settled(MISMATCH, 0)
            answered = await served.chat()
            ready = await served.client.get("/ready")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "no_engine"
    assert [each.status_code for each in told] == [503, 503]
    assert [each.json() for each in told] == [
        {"status": "not ready", "models": {"m": False}, "problems": {"m": ["tokenizer_mismatch"]}, "not_served": {}},
        {
            "status": "not ready",
            "engines": {"m": {"e": False}},
            "problems": {"m": {"e": "tokenizer_mismatch"}},
            "not_served": {},
        },
    ]
    assert answered.status_code == 200
    assert ready.json() == {"status": "ready", "models": {"m": True}, "problems": {}, "not_served": {}}


async def test_other_problems_are_told_too_and_are_no_mismatch() -> None:
    async with serving(settings_for("http://127.0.0.1:9"), wait=False) as served:
        while served.gateway.registry.problem("e") != "unreachable":
            await served.client.get("/ready")
        told = (await served.client.get("/ready")).json()
        assert (await served.metrics())[MISMATCH] == 0
    assert told["problems"] == {"m": ["unreachable"]}


async def test_what_is_not_rendered_here_is_not_compared() -> None:
    async with ScriptedEngine().running() as engine:
        engine.script = lambda seen: chat("Hi")
        engine.answers["/tokenize"] = {"tokens": [1, 2, 3]}
        async with serving(settings_for(engine.url, kind="openai")) as served:
            assert (await served.chat()).status_code == 200
            assert MISMATCH not in await served.metrics()
        assert not [seen for seen in engine.seen if seen.path == "/tokenize"]


# ---- the real engine ------------------------------------------------------------------------------------------------------


def another_model(folder: Path) -> Path:
    """A model that is spoken to in the same way: SmolLM2's template, Qwen3's vocabulary."""
    template = read_model(smollm2_file()).templates[DEFAULT]
    return model_directory(folder, qwen_vocabulary("qwen3"), {"eos_token": "<|im_end|>"}, template)


def another_revision(folder: Path) -> Path:
    """SmolLM2 with two of its control tokens in each other's place."""
    metadata = dict(read_metadata(smollm2_file().read_bytes()))
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    first, second = tokens.index("<jupyter_code>"), tokens.index("<empty_output>")
    tokens[first], tokens[second] = tokens[second], tokens[first]
    fields: dict[str, Any] = {key: field(value) for key, value in metadata.items()}
    file = folder / "revised.gguf"
    file.write_bytes(gguf(fields))
    return file


def field(value: Any) -> Field:
    """A value as it was read, as a field to be written."""
    return Typed(4, value) if type(value) is int else value


def decoded(engine: EngineUnderTest) -> str:
    """How much the engine has worked so far."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("llamacpp:n_decode_total ")]
    return str(line)


@pytest.mark.engine
@pytest.mark.parametrize("source", [another_model, another_revision, lambda _: tiny_model()], ids=["model", "revision", "small"])
async def test_the_wrong_model_before_a_real_engine_never_serves(
    local_engine: EngineUnderTest, source: Any, tmp_path: Path
) -> None:
    before = decoded(local_engine)
    settings = settings_for(local_engine.url, source=str(source(tmp_path)), format="plain")
    async with serving(settings, wait=False) as served:
        await served.settled(MISMATCH, 1, within_s=10)
        refused = await served.chat()
        told = (await served.client.get("/ready")).json()
    assert refused.status_code == 503
    assert told["problems"] == {"m": ["tokenizer_mismatch"]}
    assert decoded(local_engine) == before


@pytest.mark.engine
async def test_the_right_model_before_a_real_engine_serves(local_engine: EngineUnderTest) -> None:
    async with serving(settings_for(local_engine.url, source=str(smollm2_file()))) as served:
        answered = await served.chat(max_tokens=2)
        assert (await served.metrics())[MISMATCH] == 0
    assert answered.status_code == 200
