"""Our ids against those of the real llama.cpp, for every kind of vocabulary and of pre-tokenizer that is known."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.corpus import cased, corpus, spaced
from support.gguf_writer import Field, Typed, tiny_llama
from support.llamacpp import EngineUnderTest, free_port, smollm2_file, wait_ready
from support.sentencepiece import SMALL, Piece, mistral_file

from gateway.prompt.gguf import read_metadata
from gateway.prompt.pretokenize import TABLE, PreTokenizer
from gateway.prompt.sentencepiece_file import read_pieces
from gateway.prompt.tokenizer import from_gguf

pytestmark = [pytest.mark.engine, pytest.mark.no_cover]  # the other tests run the same code


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


@contextmanager
def serving(tokenizer: dict[str, Field], folder: Path) -> Iterator[str]:
    """An engine with this vocabulary, and weights that mean nothing."""
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    model, port = folder / "tiny.gguf", free_port()
    model.write_bytes(tiny_llama(tokenizer, vocab=len(tokens), width=32))
    command = [sys.executable, "-m", "engines.launch.llamacpp", "--model", str(model), "--port", str(port), "--alias", "tiny"]
    command += ["--slots", "1", "--ctx", "128", "--parent", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        try:
            wait_ready(port, child)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            child.wait(10)


@pytest.mark.parametrize("name", one_name_each())
def test_every_rule_cuts_as_the_engine_does(name: str, metadata: dict[str, Any], tmp_path: Path) -> None:
    """SmolLM2's vocabulary, made to cut words by another rule."""
    fields = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")} | {"tokenizer.ggml.pre": name}
    tokenizer = from_gguf(fields)
    with serving(fields, tmp_path) as url:
        wrong = {text for text in [*corpus(300), *cased(90)] if tokenizer.encode(text) != engine_ids(url, text)}
    assert not wrong


@pytest.mark.parametrize(("pieces", "prefixed"), [("small", True), ("small", False), ("real", None)])
def test_sentencepiece_s_ids_are_the_engine_s(pieces: str, prefixed: bool | None, tmp_path: Path) -> None:
    found = SMALL if pieces == "small" else real_pieces()
    texts, scores, kinds = (list(column) for column in zip(*found, strict=True))
    fields: dict[str, Any] = {
        "model": "llama", "tokens": texts, "scores": scores, "token_type": kinds, "bos_token_id": 1, "eos_token_id": 2
    }  # fmt: skip
    fields |= {} if prefixed is None else {"add_space_prefix": prefixed}
    fields = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    tokenizer = from_gguf(fields)
    asked = [*corpus(360), *spaced(240)]
    with serving(fields | {"tokenizer.ggml.scores": Typed(9, scores, 6)}, tmp_path) as url:
        wrong = {text for text in asked if tokenizer.encode(text) != engine_ids(url, text)}
    assert not wrong
    assert all(tokenizer.least_tokens([text]) <= len(tokenizer.encode(text)) for text in asked)


def real_pieces() -> list[Piece]:
    """Mistral's third vocabulary: special tokens that are written in texts, blanks in a run of one score."""
    pieces = read_pieces(mistral_file("mistral_instruct_tokenizer_240323.model.v3").read_bytes(), {})
    return list(zip(pieces.texts, pieces.scores, pieces.kinds, strict=True))
