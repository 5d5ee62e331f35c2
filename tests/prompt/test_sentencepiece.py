"""SentencePiece vocabularies: the ids are those of a plain form of its algorithm, and of the `sentencepiece` library."""

import json
import random
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sentencepiece import BYTES, SMALL, SPECIAL, Piece, field, mistral_file, model_file, varint

from gateway.errors import ModelFileError
from gateway.prompt.protobuf import fields
from gateway.prompt.sentencepiece import Prefix, merges
from gateway.prompt.sentencepiece_file import read_pieces
from gateway.prompt.tokenizer import Tokenizer, from_pieces

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "sentencepiece_ids.json").read_text())


def build(pieces: tuple[Piece, ...] = SMALL, prefix: Prefix | None = None, **changes: object) -> Tokenizer:
    return from_pieces(read_pieces(model_file(pieces, **changes), {}, prefix))  # type: ignore[arg-type]  # its own keywords


def joined(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's BPE by its definition: neighbours that make the piece of the highest score, the leftmost of several."""
    parts = list(text)
    while found := [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in scores]:
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def texts_of(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    return [tokenizer.data_of(token_id).decode() for token_id in ids]


vocabularies = st.lists(st.text("ab", min_size=2, max_size=6), max_size=14, unique=True)


@settings(max_examples=200, deadline=None)
@given(vocabularies, st.lists(st.text("ab", max_size=24), min_size=1, max_size=5), st.randoms())
def test_pairs_are_joined_by_score_then_from_the_left(words: list[str], texts: list[str], chance: random.Random) -> None:
    words = sorted({*words, "a", "b"}, key=lambda _: chance.random())
    scores = {text: -float(rank) for rank, text in enumerate(words)}
    tokenizer = build((*SPECIAL, *BYTES, ("▁", -99.0, 1), *((text, score, 1) for text, score in scores.items())), "never")
    for text in texts:
        assert texts_of(tokenizer, tokenizer.encode(text)) == joined(text, scores)


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(3, 18), max_size=12), st.integers(1, 90))
def test_runs_of_one_score_grow_from_the_left(lengths: set[int], length: int) -> None:
    """As blanks in Mistral's vocabularies, where one length is missing."""
    scores = {"a" * each: -9.0 for each in (1, 2, *lengths)}
    try:
        merges(scores)
    except ModelFileError:
        return
    tokenizer = build((*SPECIAL, *BYTES, *((text, score, 1) for text, score in scores.items())), "never")
    assert texts_of(tokenizer, tokenizer.encode("a" * length)) == joined("a" * length, scores)


def test_the_blanks_of_mistral_are_such_a_run() -> None:
    assert merges(dict.fromkeys(("▁" * each for each in (*range(1, 15), 16)), -1e9))


class Counted(dict[str, float]):
    """Scores that count how often a piece is looked for."""

    looks = 0

    def __contains__(self, text: object) -> bool:
        self.looks += 1
        return super().__contains__(text)


def test_a_long_piece_is_cut_only_where_it_begins_with_another() -> None:
    chance = random.Random(1)
    scores = Counted(dict.fromkeys("abcdefgh", 0.0))
    scores |= {"".join(chance.choices("abcdefgh", k=256)): -float(number) for number in range(1, 100)}
    long = "a" + next(text for text in scores if len(text) == 256)[:-1]
    scores |= {long: -100.0, long[1:]: -101.0}
    first = next(text for text in scores if len(text) == 256)
    assert sorted(merges(scores)) == sorted([("a", long[1:]), (long[1:], first[-1])])
    assert scores.looks < 10 * len(scores)


def test_a_tie_that_only_places_could_settle_is_refused() -> None:
    with pytest.raises(ModelFileError, match="'ab' and 'ba' have the same score"):
        merges({"a": -1.0, "b": -1.0, "ab": -2.0, "ba": -2.0})
    with pytest.raises(ModelFileError, match="has 257 characters, which is longer than 256"):
        merges({"a": 0.0, "a" * 257: -1.0})
    for made in ("ab", "ba", "bb"):
        with pytest.raises(ModelFileError, match=f"'{made}' is made of a character that is no piece"):
            merges({"a": -1.0, made: -2.0})
    assert merges({"a": -1.0, "<0>": -2.0}) == []  # which no text comes to
    with pytest.raises(ModelFileError, match="no order that is right"):
        merges({"a" * each: -1.0 for each in (1, 2, 200)})
    assert len(merges({"a": -1.0, "b": -1.0, "c": -1.0, "ab": -2.0, "ac": -2.0})) == 2  # these never overlap


@pytest.mark.parametrize(
    ("prefix", "text", "shown"),
    [
        ("always", "a</s>a", [" a", "</s>", " a"]),
        ("first", "a</s>a", [" a", "</s>", "a"]),
        ("never", "a</s>a", ["a", "</s>", "a"]),
        ("always", " a", [" ", " a"]),
        ("never", " a", [" a"]),
        ("always", "", []),
        (None, "a", [" a"]),
    ],
)
def test_where_a_space_is_put(prefix: Prefix | None, text: str, shown: list[str]) -> None:
    tokenizer = build(prefix=prefix)
    assert texts_of(tokenizer, tokenizer.encode(text)) == shown


def test_characters_without_a_piece_are_bytes() -> None:
    tokenizer = build()
    ids = tokenizer.encode("a🦙\nb")
    assert [tokenizer.data_of(token_id) for token_id in ids] == [b" a", *(bytes([byte]) for byte in "🦙\n".encode()), b"b"]
    assert tokenizer.lost("a🦙\n") == b""
    assert tokenizer.text_of(ids[1]) == "\ufffd"


def test_characters_are_lost_where_there_are_no_bytes() -> None:
    tokenizer = build(tuple(piece for piece in SMALL if piece[2] != 6))
    assert tokenizer.lost("a 🦙b\nx") == "🦙x".encode()
    assert tokenizer.lost("ab é") == b""
    assert tokenizer.encode("a🦙🦙b") == tokenizer.encode("axb")  # unknown ones in a row are one token


def test_an_answer_is_given_back_from_its_bytes() -> None:
    tokenizer = build()
    spoken = tokenizer.detokenizer()
    ids = (*tokenizer.encode("a é"), *(3 + byte for byte in "🦙".encode()), 3 + 0xC3, 259 + 1, 1)
    assert [spoken.add(token_id) for token_id in ids] == ["a", " é", "", "", "", "🦙", "", "\ufffda", "<s>"]
    assert spoken.finish() == ""
    spoken.add(3 + 0xF0)
    assert spoken.finish() == "\ufffd"


@pytest.mark.parametrize("name", GOLDEN["ids"])
def test_real_vocabularies_give_the_ids_of_the_library(name: str) -> None:
    """The expected ids are those of the package sentencepiece 0.2.3. 500 texts more are given back whole, piece by piece."""
    tokenizer = from_pieces(read_pieces(mistral_file(name).read_bytes(), {}))
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"][name], strict=True):
        assert list(tokenizer.encode(text)) == ids
    chance = random.Random(3)
    for _ in range(500):
        text = "".join(chance.choice(GOLDEN["texts"])[: chance.randrange(20)] for _ in range(6)).replace("▁", " ")
        ids, spoken, said = tokenizer.encode(text), tokenizer.detokenizer(), ""
        for token_id in ids:
            said += spoken.add(token_id)
            assert text.startswith(said)
        assert said + spoken.finish() == text == tokenizer.backend.decode(list(ids), skip_special_tokens=False)
        assert tokenizer.least_tokens([text]) <= len(ids)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no pieces"),
        (b"\x00\x00", "no pieces"),
        (b"not a model", "cut off or damaged"),
        (model_file()[:-3], "cut off or damaged"),
        (b"\xff" * 12, "cut off or damaged"),
        (b"\x0b", "cut off or damaged"),  # a group
        (b"\x08\x01", "not a SentencePiece model"),
        (field(1, b""), "not a SentencePiece model"),
        (field(1, field(1, b"\xff")), "not UTF-8"),
        (model_file([("a", 0.0, 9)]), "'a' is of an unknown kind"),
        (model_file([("a", 0.0, 5)]), "'a' is of an unknown kind"),
        (field(1, field(1, b"a") + varint(2 << 3) + b"\x01"), "'a' is of an unknown kind"),
        (model_file(kind=1), "not of the type BPE"),
        (model_file(trims=True), "leaves blanks out"),
        (model_file(suffix=True), "leaves blanks out"),
        (model_file(charsmap=b"\x01"), "replaces characters"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        read_pieces(data, {})


@pytest.mark.parametrize(
    ("pieces", "says"),
    [((*SMALL, ("a", -99.0, 1)), "a token twice"), (SMALL[:100] + SMALL[101:], "tokens for some bytes only")],
)
def test_a_vocabulary_that_cannot_be_used_is_refused(pieces: tuple[Piece, ...], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        build(pieces)


def test_tokens_of_other_files_are_added() -> None:
    size = len(SMALL)
    pieces = read_pieces(model_file(), {size: "<|im_end|>", 2: "<end>"})
    assert (pieces.texts[2], pieces.texts[-1], len(pieces.texts)) == ("<end>", "<|im_end|>", size + 1)
    assert from_pieces(pieces).encode("<|im_end|><end>") == (size, 2)
    with pytest.raises(ModelFileError, match=f"add the id {size + 1} to its {size} pieces"):
        read_pieces(model_file(), {size + 1: "<|im_end|>"})


def test_what_users_define_is_found_as_it_is_written() -> None:
    tokenizer = build((*SMALL, ("▁▁", 0.0, 4)), "never")
    assert texts_of(tokenizer, tokenizer.encode("a  a")) == ["a", "  ", "a"]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_give_pieces_or_one_kind_of_error(data: bytes, at: int) -> None:
    whole = model_file(SMALL[:3] + SMALL[-5:])
    for each in (data, whole[:at] + data + whole[at:], whole[:at] + data):
        with suppress(ModelFileError):
            read_pieces(each, {})


def test_numbers_of_a_message() -> None:
    message = varint(1 << 3) + varint(300) + varint(2 << 3 | 1) + bytes(8) + field(3, b"x")
    assert list(fields(memoryview(message))) == [(1, 300), (2, bytes(8)), (3, b"x")]
