"""Our ids against those of the real llama.cpp, for every kind of pre-tokenizer that the table knows."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.corpus import corpus
from support.gguf_writer import Field, tiny_llama
from support.llamacpp import EngineUnderTest, free_port, smollm2_file, wait_ready

from gateway.prompt.gguf import read_metadata
from gateway.prompt.pretokenize import TABLE, PreTokenizer
from gateway.prompt.tokenizer import from_gguf

pytestmark = pytest.mark.engine


def engine_ids(url: str, text: str) -> tuple[int, ...]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    asked = urllib.request.Request(f"{url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return tuple(json.load(answer)["tokens"])


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return dict(read_metadata(smollm2_file().read_bytes()))


def test_smollm2_s_ids_are_the_engine_s(local_engine: EngineUnderTest, metadata: dict[str, Any]) -> None:
    tokenizer = from_gguf(metadata)
    wrong = {text for text in corpus(900) if tokenizer.encode(text) != engine_ids(local_engine.url, text)}
    assert not wrong


def one_name_each() -> list[str]:
    kinds: dict[PreTokenizer, str] = {}
    for name, rules in TABLE.items():
        kinds.setdefault(rules, name)
    return list(kinds.values())


@pytest.fixture
def relabelled(request: pytest.FixtureRequest, metadata: dict[str, Any], tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """An engine with SmolLM2's vocabulary, made to cut words by another rule, and weights that mean nothing."""
    tokenizer: dict[str, Field] = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}
    tokenizer["tokenizer.ggml.pre"] = request.param
    model, port = tmp_path / "tiny.gguf", free_port()
    model.write_bytes(tiny_llama(tokenizer, vocab=49152, width=32))
    command = [sys.executable, "-m", "engines.launch.llamacpp", "--model", str(model), "--port", str(port), "--alias", "tiny"]
    command += ["--slots", "1", "--ctx", "128", "--parent", str(os.getpid())]
    with subprocess.Popen(command, env={**os.environ, "OMP_WAIT_POLICY": "passive"}, stderr=subprocess.DEVNULL) as child:
        try:
            wait_ready(port, child)
            yield f"http://127.0.0.1:{port}", tokenizer
        finally:
            child.terminate()
            child.wait(10)


@pytest.mark.parametrize("relabelled", one_name_each(), indirect=True)
def test_every_rule_cuts_as_the_engine_does(relabelled: tuple[str, dict[str, Any]]) -> None:
    url, fields = relabelled
    tokenizer = from_gguf(fields)
    wrong = {text for text in corpus(450) if tokenizer.encode(text) != engine_ids(url, text)}
    assert not wrong
