"""Segments: always the ids of the whole text, within a bound, and off where that could not be promised."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.llamacpp import smollm2_file
from support.vocabulary import CONTROL, DEFINED, metadata, tokenizer_fields
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from gateway.prompt import tokenizer as ours
from gateway.prompt.segments import Segments, cut_tokens
from gateway.prompt.source import read_model
from gateway.prompt.tokenizer import AddedText

SMALL = ours.from_gguf(metadata(tokenizer_fields()))
TURNS = "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
PIECES = [*CONTROL, *DEFINED, *(token[: len(token) // 2] for token in CONTROL), *(token[2:] for token in CONTROL)]
PIECES += ["the ", "12", "--", "\n", " ", "é", "🦙", "\u0301", "a<", ">", "|", "<|", "<|im_start|", "im_end|>", "x" * 40]


def cuts(tokenizer: ours.Tokenizer, shown: str = TURNS) -> tuple[str, ...]:
    return cut_tokens(tokenizer.added, shown)[0]


@settings(max_examples=300)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=6))
def test_the_ids_are_those_of_the_whole_text(texts: list[str]) -> None:
    segments = Segments(SMALL, cuts(SMALL), max_bytes=2_000)
    for text in [*texts, *texts]:
        assert segments.encode(text) == SMALL.encode(text)
        assert segments.held_bytes <= 2_000


def conversation(source: random.Random, words: list[str]) -> str:
    turns = []
    for _ in range(source.randrange(1, 8)):
        said = "".join(source.choice(words) for _ in range(source.randrange(0, 30)))
        turns.append(f"<|im_start|>{source.choice(['user', 'assistant', 'system'])}\n{said}<|im_end|>\n")
    return "".join(turns)


def test_three_thousand_conversations_of_a_real_vocabulary() -> None:
    tokenizer = read_model(smollm2_file()).tokenizer
    segments = Segments(tokenizer, cuts(tokenizer), max_bytes=1 << 20)
    special = [token.text for token in tokenizer.added]
    halves = [text[: len(text) // 2] for text in special] + [text[len(text) // 2 :] for text in special]
    words = ["Hello ", "wörld", " 12345", "\n\n", "\t", "def f(x):\n    return x", "🦙", "\u0301", "\u200d", "中文"]
    words += [*special, *halves]
    source = random.Random(7)
    seen = 0
    for _ in range(3_000):
        text = conversation(source, words)
        seen += len(text)
        assert segments.encode(text) == tokenizer.encode(text)
    assert seen > 1_000_000


def test_a_turn_tokenises_only_what_is_new() -> None:
    asked: list[str] = []

    class Counting(ours.Tokenizer):
        def encode_all(self, texts: list[str]) -> list[tuple[int, ...]]:
            asked.extend(texts)
            return super().encode_all(texts)

    counting = Counting.__new__(Counting)
    for name, value in vars(SMALL).items():
        setattr(counting, name, value)
    segments = Segments(counting, cuts(SMALL))
    first = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    segments.encode(first)
    asked.clear()
    second = first + "then<|im_end|>\n<|im_start|>user\n12<|im_end|>\n<|im_start|>assistant\n"
    assert segments.encode(second) == SMALL.encode(second)
    assert asked == ["<|im_start|>assistant\nthen", "<|im_start|>user\n12"]


def special(text: str, *, normalized: bool = False, swallows: bool = False) -> AddedText:
    return AddedText(text, normalized, swallows)


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ([special("<a>"), special("<b>")], ("<a>", "<b>")),
        ([special("<a>"), special("x<a>")], ()),  # begins before, and holds it
        ([special("<a>"), special("y<")], ()),  # begins before, and takes its first character
        ([special("<a>"), special("<a><b>")], ("<a>",)),  # the longer one begins at the same place
        ([special("aa"), special("<b>")], ("<b>",)),  # reaches into itself
        ([special("<a>", normalized=True), special("<b>")], ("<b>",)),
        ([special("<a>"), special("z", swallows=True)], ()),
        ([special("<c>")], ()),
    ],
)
def test_cuts_are_only_where_a_token_is_sure_to_be_found(added: list[AddedText], expected: tuple[str, ...]) -> None:
    found, why = cut_tokens(added, "<a> <b> aa <a><b>")
    if "<a><b>" in [token.text for token in added]:
        found = tuple(text for text in found if text != "<a><b>")
    assert found == expected
    assert bool(why) is (not found)


@settings(max_examples=200)
@given(
    st.lists(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    st.lists(st.text("ab<> ", max_size=25), max_size=4),
    st.booleans(),
)
def test_whatever_the_special_tokens_are(added: list[str], texts: list[str], prefix_space: bool) -> None:
    backend = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate("ab<>\u0120")}, merges=[]))
    backend.normalizer = normalizers.Replace("ba", "ab")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.add_tokens([AddedToken(text, special=True, normalized=False) for text in added])
    tokenizer = ours.Tokenizer(backend)
    chosen = cuts(tokenizer, "".join(added))
    if not chosen:
        return
    segments = Segments(tokenizer, chosen)
    for text in [*texts, "".join(texts), "".join(added)]:
        assert segments.encode(text) == tokenizer.encode(text)
