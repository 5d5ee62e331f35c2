import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.vocabulary import CONTROL, DEFINED, byte_alphabet, metadata, tokenizer_fields
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from gateway.errors import ModelFileError
from gateway.prompt import tokenizer as ours
from gateway.prompt.neutral import Spellings
from gateway.prompt.pretokenize import TABLE, pre_tokenizer


def build(pre: str = "gpt-2", **changes: Any) -> ours.Tokenizer:
    return ours.from_gguf(metadata(tokenizer_fields(pre, **changes)))


def holed(missing: str) -> ours.Tokenizer:
    tokens = [token for token in tokenizer_fields()["tokenizer.ggml.tokens"] if token != missing]  # type: ignore[union-attr]
    return build(tokens=tokens, token_type=[3] * 5 + [4] * 4 + [1] * (len(tokens) - 9))


SMALL = build()


def spoken(tokenizer: ours.Tokenizer, ids: tuple[int, ...]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join(detokenizer.add(token_id) for token_id in ids) + detokenizer.finish()


def sentencepiece() -> Tokenizer:
    """A vocabulary with byte fallback, as Llama 2's."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary |= {"▁": 259, "a": 260, "b": 261, "▁a": 262}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.enable_truncation(3)
    backend.enable_padding(length=7)
    return backend


def test_special_tokens_are_cut_out_and_nothing_is_added() -> None:
    ids = SMALL.encode("<|im_start|>the <think>\n")
    assert [SMALL.text_of(token_id) for token_id in ids] == ["<|im_start|>", "the", " ", "<think>", "\n"]
    assert SMALL.encode("") == ()
    assert dict(SMALL.special_ids) == {text: token_id for token_id, text in enumerate([*CONTROL, *DEFINED])}
    assert SMALL.vocab_size == 9 + 256 + 12
    assert SMALL.id_of("<s>") == 3
    assert SMALL.id_of("no such token") is None
    assert not SMALL.adds_bos(3)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.lists(st.sampled_from([*CONTROL, *DEFINED, "🦙", "\u0301", " the", "12"]), max_size=5))
def test_what_is_encoded_is_given_back_token_by_token(text: str, marks: list[str]) -> None:
    whole = text.join(["", *marks, ""]) if marks else text
    whole = whole.encode("utf-8", "ignore").decode()
    assert spoken(SMALL, SMALL.encode(whole)) == whole
    assert SMALL.lost(whole) == b""


def test_a_character_comes_out_when_it_is_whole() -> None:
    detokenizer = SMALL.detokenizer()
    ids = SMALL.encode("é🦙")
    assert len(ids) == 6
    assert [detokenizer.add(token_id) for token_id in ids] == ["", "é", "", "", "", "🦙"]
    assert detokenizer.finish() == ""
    assert detokenizer.add(ids[2]) == ""
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("token_id", [-1, 10_000])
def test_an_id_beyond_the_vocabulary_has_no_text(token_id: int) -> None:
    assert SMALL.text_of(token_id) == ""
    assert SMALL.detokenizer().add(token_id) == ""


def test_a_byte_without_a_token_is_named_and_does_not_join_its_neighbours() -> None:
    lossy = holed(byte_alphabet()[4])
    assert lossy.lost("-\x04-\x04") == b"\x04\x04"
    assert lossy.lost("--") == b""
    assert [lossy.text_of(token_id) for token_id in lossy.encode("-\x04- --")] == ["-", "-", " ", "--"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": None}, "holds no tokenizer"),
        ({"model": "llama"}, "scores does not have one entry a token"),
        ({"model": "bert"}, "kind 'bert'"),
        ({"pre": None}, "does not name its pre-tokenizer"),
        ({"pre": "default"}, "'default' is not known here"),
        ({"pre": 7}, "holds a int"),
        ({"tokens": None}, "tokens is missing or empty"),
        ({"tokens": []}, "tokens is missing or empty"),
        ({"tokens": [1, 2]}, "not an array of str"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "a token twice"),
        ({"merges": None}, "merges is missing or empty"),
        ({"merges": ["th"]}, "merge number 0, 'th'"),
        ({"merges": ["t h", "q q"]}, "merge number 1, 'q q'"),
        ({"merges": ["t no"]}, "merge number 0, 't no'"),
        ({"token_type": None}, "one entry a token"),
        ({"token_type": [1]}, "one entry a token"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_with_the_reason(changes: dict[str, Any], says: str) -> None:
    fields = tokenizer_fields() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelFileError, match=says):
        ours.from_gguf(metadata({key: value for key, value in fields.items() if value is not None}))


def test_every_pre_tokenizer_builds() -> None:
    for name in TABLE:
        assert spoken(build(name), build(name).encode("It's 12345 ünï\r\n  x")) == "It's 12345 ünï\r\n  x"
    assert pre_tokenizer("llama-bpe").whole_words


def test_digits_are_cut_as_the_model_s_own_rule_says() -> None:
    def words(pre: str) -> list[str]:
        return [build(pre).text_of(token_id) for token_id in build(pre).encode("123")]

    assert words("gpt-2") == ["12", "3"]
    assert words("qwen2") == ["1", "2", "3"]
    assert words("llama-bpe") == ["12", "3"]


def test_an_unused_token_that_is_no_byte_string_is_its_own_text() -> None:
    fields = tokenizer_fields()
    tokens = [*fields["tokenizer.ggml.tokens"], "[PAD 1]"]  # type: ignore[misc]
    types = [*fields["tokenizer.ggml.token_type"], 5]  # type: ignore[misc]
    padded = build(tokens=tokens, token_type=types)
    assert padded.text_of(len(tokens) - 1) == "[PAD 1]"
    assert "[PAD 1]" not in padded.special_ids


def test_whole_words_are_not_merged_up_to() -> None:
    """`ththe` has no merge, so that only a rule that looks for the whole word first finds it."""
    fields = tokenizer_fields()
    tokens = [*fields["tokenizer.ggml.tokens"], "ththe"]  # type: ignore[misc]
    types = [*fields["tokenizer.ggml.token_type"], 1]  # type: ignore[misc]
    assert len(build("llama-bpe", tokens=tokens, token_type=types).encode("ththe")) == 1
    assert len(build("gpt-2", tokens=tokens, token_type=types).encode("ththe")) > 1


def test_a_tokenizer_json_that_is_sentencepiece() -> None:
    read = ours.from_json(sentencepiece().to_str().encode())
    ids = read.encode("a b🦙</s>a")
    assert ids[-3:] == (2, 259, 260) or ids[-2:] == (2, 262)
    assert len(ids) > 3  # truncation and padding of the file are off
    assert read.lost("🦙") == b""
    assert read.text_of(2) == "</s>"
    assert read.text_of(260) == "a"
    assert read.special_ids == {"<s>": 1, "</s>": 2}
    assert read.adds_bos(1)
    assert not read.adds_bos(2)
    detokenizer = read.detokenizer()
    assert [detokenizer.add(token_id) for token_id in (261, *(3 + byte for byte in "🦙".encode()), 262)] == [
        "b",
        "",
        "",
        "",
        "🦙",
        " a",
    ]
    assert detokenizer.finish() == ""
    detokenizer.add(3 + 0xF0)
    assert detokenizer.finish() == "\ufffd"


def test_a_tokenizer_json_that_is_byte_level() -> None:
    backend = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(byte_alphabet())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<é>", special=False, normalized=False)])
    read = ours.from_json(backend.to_str().encode())
    assert read.encode("é<é>") == (0xC3, 0xA9, 256)
    assert spoken(read, read.encode("é<é> ok")) == "é<é> ok"


def byte_level(added: tuple[AddedToken, ...] = (), **parts: Any) -> ours.Tokenizer:
    merges = [("=", "="), ("==", "=="), ("Ã", "©"), ("Ã©", "Ã©")]
    tokens = [*byte_alphabet(), *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([*added])
    for name, part in parts.items():
        setattr(backend, name, part)
    return ours.from_json(backend.to_str().encode())


def unigram(**parts: Any) -> ours.Tokenizer:
    pieces = [("<unk>", 0.0), ("a", -1.0), ("=", -1.0), ("▁", -1.0), ("▁Z", -1.0), ("==", -0.5)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    for name, part in parts.items():
        setattr(backend, name, part)
    return ours.from_json(backend.to_str().encode())


SWALLOWING = (AddedToken("<x>", lstrip=True, rstrip=True, normalized=False),)
WORDPIECE = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2}, unk_token="[UNK]"))
BOUNDED = {
    "gguf": SMALL,
    "gguf without =": holed("="),
    "bytes": byte_level(),
    "nfc": byte_level(normalizer=normalizers.NFC()),
    "lower case": byte_level(normalizer=normalizers.Lowercase()),
    "dropping": byte_level(normalizer=normalizers.Replace("=", "")),
    "swallowing": byte_level(added=SWALLOWING),
    "sentencepiece": ours.from_json(sentencepiece().to_str().encode()),
    "unigram": unigram(),
    "wordpiece": ours.from_json(WORDPIECE.to_str().encode()),
}
hard = st.sampled_from(
    ["=", "====", "a", "A", "Z", "zz", "é", "e\u0301", "\u212a", "\u1100\u1161\u11a8", "🦙", " ", "\u3000", "<x>"]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(hard, st.integers(1, 30)), max_size=6), st.integers(0, 6))
def test_no_prompt_has_fewer_tokens_than_the_bound(runs: list[tuple[str, int]], at: int) -> None:
    pieces = [text * count for text, count in runs]
    texts = ["".join(pieces[:at]), "".join(pieces[at:])]
    for name, tokenizer in BOUNDED.items():
        assert tokenizer.least_tokens(texts) <= len(tokenizer.encode("".join(texts))), name


@pytest.mark.parametrize(
    ("name", "text", "least"),
    [
        ("gguf", "a" * 1300, 100),  # <|endoftext|> is the longest, of 13 characters
        ("gguf", "é" * 650 + "\n " * 99, 100),
        ("gguf without =", "=" * 1300, 0),
        ("bytes", "=" * 400, 100),
        ("bytes", "=" * 401, 101),
        ("bytes", "é" * 400, 200),
        ("nfc", "=" * 400, 100),
        ("nfc", "é" * 400, 0),
        ("lower case", "a" * 400, 100),
        ("lower case", "A" * 400, 0),
        ("dropping", "=" * 400, 0),
        ("swallowing", "<x>" * 400, 300),
        ("swallowing", "\u3000" * 400, 0),
        ("sentencepiece", "ab" * 400, 160),  # <unk> is the longest, and only what has a token of its own is counted
        ("sentencepiece", "c" * 400, 0),
        ("unigram", "a=" * 400, 160),
        ("unigram", "Z" * 400, 0),
        ("wordpiece", "a" * 400, 0),
    ],
)
def test_the_bound_counts_what_surely_needs_a_token(name: str, text: str, least: int) -> None:
    assert BOUNDED[name].least_tokens([text]) == least
    assert BOUNDED[name].least_tokens([text[:7], text[7:]]) == least


def test_no_character_is_composed_of_more_than_its_bytes_of_visible_ascii() -> None:
    """What the bound rests on where a vocabulary normalises: a composed character has at least a byte for each visible one."""
    for form in ("NFC", "NFKC"):
        for code in (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000):
            composed = chr(code)
            parts = unicodedata.normalize("NFD", composed)
            if len(parts) > 1 and unicodedata.normalize(form, parts) == composed:
                assert len(composed.encode()) >= sum("!" <= part <= "~" for part in parts)


def test_an_id_beyond_any_real_vocabulary_is_refused() -> None:
    small = Tokenizer(models.BPE(vocab={"a": 77}, merges=[])).to_str()
    with pytest.raises(ModelFileError, match="highest id is 4000000000"):
        ours.from_json(small.replace("77", "4000000000").encode())


def with_specials(*texts: str) -> bytes:
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.add_special_tokens([*texts])
    return backend.to_str().encode()


def test_special_tokens_beyond_any_real_vocabulary_s_are_refused() -> None:
    assert ours.from_json(with_specials("<" + "x" * 126 + ">")).vocab_size == 2
    with pytest.raises(ModelFileError, match=r"token '<x+…' has 129 characters, the limit is 128"):
        ours.from_json(with_specials("<s>", "<" + "x" * 127 + ">"))
    with pytest.raises(ModelFileError, match="has 32769 special and added tokens, the limit is 32768"):
        ours.from_json(with_specials(*(f"<{number}>" for number in range(32_769))))


def test_the_most_special_tokens_that_a_vocabulary_may_have_can_be_looked_for() -> None:
    nested = ["a" * size + "b" for size in range(1, 128)]
    spelled = Spellings(ours.from_json(with_specials(*nested)).special_ids)
    assert spelled.spelled("x" + "a" * 200 + "b")
    assert not spelled.spelled("x" + "a" * 200)


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_json_is_refused(data: bytes) -> None:
    with pytest.raises(ModelFileError, match="json cannot be read"):
        ours.from_json(data)


def test_a_byte_is_a_byte_whatever_else_the_decoder_does() -> None:
    backend = sentencepiece()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")])
    read = ours.from_json(backend.to_str().encode())
    assert read.data_of(3 + 0xC3) == b"\xc3"
    assert read.data_of(262) == b" a"
    assert read.data_of(-1) == read.data_of(10_000) == b""
    assert spoken(read, read.encode("b🦙")) == " b🦙"
