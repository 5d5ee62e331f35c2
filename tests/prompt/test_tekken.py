"""Mistral's tekken.json: the ids are those of mistral-common."""

from typing import Any

import pytest
from support.corpus import corpus
from support.sentencepiece import mistral_file
from support.tekken import SIZE, tekken_file

from gateway.errors import ModelFileError
from gateway.prompt.tokenizer import from_tekken
from gateway.wire import jsonio


def test_a_small_one() -> None:
    tokenizer = from_tekken(tekken_file(), {})
    assert tokenizer.vocab_size == SIZE
    assert tokenizer.special_ids == {"<unk>": 0, "<s>": 1, "</s>": 2, "<SPECIAL_3>": 3}
    ids = tokenizer.encode("<s>the thethé12</s>")
    assert [tokenizer.data_of(each) for each in ids] == [b"<s>", b"the", b" the", b"th", "é".encode(), b"1", b"2", b"</s>"]
    assert tokenizer.encode("thethe") == (4 + 256 + 4,)  # no pair makes it, but the word is a token
    assert tokenizer.lost("\x00🦙") == b""


def test_other_files_may_name_the_special_tokens() -> None:
    without = {key: value for key, value in tekken_file().items() if key != "special_tokens"}
    assert from_tekken(without, {1: "<bos>"}).special_ids["<bos>"] == 1
    with pytest.raises(ModelFileError, match="does not name its special tokens"):
        from_tekken(without, {})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config": None}, "has no config"),
        ({"config": {}}, "config.default_num_special_tokens is not a number"),
        ({"config": tekken_file()["config"] | {"default_vocab_size": True}}, "config.default_vocab_size is not a number"),
        ({"config": tekken_file()["config"] | {"default_vocab_size": 5_000_000}}, "config.default_vocab_size is not a number"),
        ({"config": tekken_file()["config"] | {"pattern": 1}}, "config.pattern is not a text"),
        ({"config": tekken_file()["config"] | {"pattern": "("}}, "tekken.json cannot be read"),
        ({"config": tekken_file()["config"] | {"default_vocab_size": 9999}}, "vocab does not list 9995 tokens"),
        ({"vocab": None}, "vocab does not list"),
        ({"vocab": [1] * 300}, "no token of rank 0 at its place"),
        ({"vocab": [tekken_file()["vocab"][1]] * 300}, "no token of rank 0 at its place"),
        ({"vocab": [{"rank": 0, "token_bytes": "&"}] * 300}, "rank 0 is not base64"),
        ({"vocab": [{"rank": rank, "token_bytes": "AA=="} for rank in range(300)]}, "a token twice"),
        ({"special_tokens": [{"rank": "0", "token_str": "<s>"}]}, "not a rank and a text"),
        ({"special_tokens": [{"rank": 99, "token_str": "<x>"}]}, "'<x>' of rank 99 is not among the first 4 tokens"),
        ({"special_tokens": [{"rank": -1, "token_str": "<x>"}]}, "'<x>' of rank -1 is not among"),
        ({"special_tokens": [{"rank": 2, "token_str": text} for text in "xy"]}, "'y' of rank 2 has the rank of another"),
        ({"special_tokens": [{"rank": 0, "token_str": "x"}, {"rank": 1, "token_str": "x"}]}, "a token twice"),
    ],
)
def test_what_cannot_be_used_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        from_tekken(tekken_file(**changes), {})


def test_a_real_one_gives_the_ids_of_mistral_common() -> None:
    reference = pytest.importorskip("mistral_common.tokens.tokenizers.tekken").Tekkenizer
    file = mistral_file("tekken_240911.json")
    names = {each["rank"]: each["token_str"] for each in reference.DEPRECATED_SPECIAL_TOKENS}
    tokenizer = from_tekken(jsonio.decode(file.read_bytes()), names)
    theirs = reference.from_file(file)
    for text in corpus(900):
        assert list(tokenizer.encode(text)) == theirs.encode(text, bos=False, eos=False)
        assert tokenizer.least_tokens([text]) <= len(tokenizer.encode(text))
    assert tokenizer.encode("<s>[INST]") == (theirs.bos_id, theirs.get_special_token("[INST]"))
