"""The text that tells tokenizers apart: it is the same to all who serve a model, and to none who serve another."""

import json
import unicodedata
import urllib.request
from typing import Any

import pytest
from support.llamacpp import EngineUnderTest, smollm2_file
from support.vocabulary import CONTROL, DEFINED, MERGES, metadata, small_tokenizer, tokenizer_fields
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.fleet.parity import TEXT, Difference, Parity
from gateway.prompt.source import read_model
from gateway.prompt.tokenizer import Tokenizer, from_gguf

TOKENS: Any = tokenizer_fields()["tokenizer.ggml.tokens"]


def parity() -> Parity:
    return Parity(small_tokenizer())


def other(pre: str = "gpt-2", **changes: Any) -> Tokenizer:
    return from_gguf(metadata(tokenizer_fields(pre, **changes)))


def swapped(first: str, second: str) -> list[str]:
    places = {first: second, second: first}
    return [places.get(token, token) for token in TOKENS]


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_no_normalisation_changes_the_text(form: Any) -> None:
    assert unicodedata.is_normalized(form, TEXT)


def test_the_text_has_what_vocabularies_differ_in() -> None:
    categories = {unicodedata.category(character) for character in TEXT}
    assert {"Lu", "Ll", "Lo", "Mn", "Mc", "Nd", "Pc", "Ps", "Sc", "Sm", "So", "Sk", "Cc", "Zs"} <= categories
    scripts = {unicodedata.name(character).split(" ")[0] for character in TEXT if character.isalpha()}
    assert {"LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC", "DEVANAGARI", "THAI", "CJK", "HIRAGANA", "HANGUL"} <= scripts
    assert all(each in parity().text for each in (*CONTROL, *DEFINED, "                ", "\n\n\n", "\t\t", "1234567"))


def test_the_same_vocabulary_has_the_same_ids() -> None:
    assert parity().difference(other().encode(parity().text)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": swapped("<|im_start|>", "<|im_end|>")},
        {"tokens": swapped("<think>", "</think>")},
        {"tokens": swapped("the", "on")},
        {"merges": [merge for merge in MERGES if merge != "1 2"]},
        {"pre": "qwen2"},
        {"token_type": [3] * 4 + [1] * (len(TOKENS) - 4)},
    ],
)
def test_vocabularies_that_differ_in_little_are_told_apart(changes: dict[str, Any]) -> None:
    found = parity().difference(other(**changes).encode(parity().text))
    assert found is not None
    assert found.gateway_id != found.engine_id


def test_the_first_other_token_is_told_with_the_text_around_it() -> None:
    said = list(parity().ids)
    at = parity().text.index("Well-known")
    position = len(small_tokenizer().encode(parity().text[:at]))
    own, said[position] = said[position], 7
    assert parity().difference(tuple(said)) == Difference(position, own, 7, "t it? Well-k")


@pytest.mark.parametrize("length", [0, 5])
def test_ids_that_end_early_or_late_differ(length: int) -> None:
    ids = parity().ids
    short, long = parity().difference(ids[:length]), parity().difference((*ids, 2))
    assert short is not None
    assert (short.position, short.gateway_id, short.engine_id) == (length, ids[length], None)
    assert long is not None
    assert (long.position, long.gateway_id, long.engine_id) == (len(ids), None, 2)
    assert long.text


def test_ids_that_no_vocabulary_has_are_only_numbers() -> None:
    found = parity().difference((-1, 2**70))
    assert found is not None
    assert (found.position, found.engine_id) == (0, -1)


def test_special_tokens_with_blanks_are_left_out_and_their_number_is_bounded() -> None:
    backend = Backend.from_str(small_tokenizer().backend.to_str())
    backend.add_special_tokens([AddedToken(" \n "), *(AddedToken(f"<|reserved_{number}|>") for number in range(3000))])
    text = Parity(Tokenizer(backend)).text
    assert text.startswith(TEXT + "".join((*CONTROL, *DEFINED)) + "<|reserved_0|>")
    assert "<|reserved_1000|>" in text
    assert "<|reserved_2000|>" not in text


@pytest.mark.engine
def test_the_engine_s_ids_are_ours(local_engine: EngineUnderTest) -> None:
    own = Parity(read_model(smollm2_file()).tokenizer)
    body = json.dumps({"content": own.text, "add_special": False, "parse_special": True}).encode()
    asked = urllib.request.Request(f"{local_engine.url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert own.difference(tuple(json.load(answer)["tokens"])) is None
