"""Redaction: planted secrets never come out, and one record is one line, whatever it holds."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.observe.credentials import MASK
from gateway.observe.redact import Redactor

KEY = "il-Canary/7+?='x"
ENGINE_KEY = "engine-canary-0123456789"
REDACTOR = Redactor([KEY, ENGINE_KEY, ""])


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"refused {KEY} here", KEY),
        (f"GET /v1?key={'il-Canary%2F7%2B%3F%3D%27x'}&a=1", "il-Canary%2F7"),
        (f"headers {[('x', KEY)]!r}", "il-Canary"),
        (f"twice {ENGINE_KEY}{ENGINE_KEY}", ENGINE_KEY),
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("[(b'authorization', b'Bearer abcdef123456')]", "abcdef123456"),
        ("[(b'x-api-key', b'abcdef123456')]", "abcdef123456"),
        ('{"api_key": "abcdef123456", "n": 1}', "abcdef123456"),
        ("OPENAI_API_KEY=abcdef123456", "abcdef123456"),
        ("?access_token=abcdef123456&n=1", "abcdef123456"),
        ("Set-Cookie: session=abcdef123456; id=canary", "canary"),
        ("password=hunter2", "hunter2"),
        ("sent bearer abcdef123456 to it", "abcdef123456"),
        ("key sk-abcdef123456 is wrong", "sk-abcdef123456"),
    ],
)
def test_a_planted_secret_is_masked(text: str, secret: str) -> None:
    assert secret in text
    masked = REDACTOR.text(text)
    assert secret not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text",
    ["The model 'gpt' does not exist.", "max_tokens: expected int, got str", "first_token", "bearer of news", "task-12 is done"],
)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor().text(text) == text
    assert REDACTOR.text(text) == text


@pytest.mark.parametrize(
    ("record", "written"),
    [
        ({"a": "b", "n": (), "d": {}}, {"a": "b", "n": [], "d": {}}),
        ({"a": "b", "n": ("c", "d"), "i": -7}, {"a": "b", "n": ["c", "d"], "i": -7}),
        ({"a": "b", "n": ("c", KEY)}, {"a": "b", "n": ["c", MASK]}),
        ({"a": "b", "n": ("c", 1), "s": set()}, {"a": "b", "n": ["c", 1], "s": []}),
        ({"a": "b", "i": 1 << 63}, {"a": "b", "i": hex(1 << 63)}),
        ({"a": "b", KEY: 1}, {"a": "b", MASK: 1}),
        ({"a": "b" * 600, "c": "d" * 600}, {"a": "b" * 600, "c": "d" * 600}),
        ({"a": "first_token", "b": False, "token": None}, {"a": "first_token", "b": False, "token": None}),
        ({"a": "b", "token": 5}, {"a": "b", "token": MASK}),
        ({"e" * 70: "b"}, {"e" * 70: "b"}),
    ],
)
def test_the_short_way_and_the_long_way_write_the_same(record: dict[str, Any], written: dict[str, Any]) -> None:
    assert json.loads(REDACTOR.line(record)) == written
    assert json.loads(REDACTOR.line(record | {"odd": "\n"})) == written | {"odd": "\n"}


@pytest.mark.parametrize(
    "name", ["authorization", "Authorization", "x-api-key", "api_key", "cookie", "set-cookie", "password", "token", "hf_token"]
)
@pytest.mark.parametrize("value", ["plain", b"plain", 314159, ["plain"], {"a": "plain"}])
def test_a_value_under_a_secrets_name_is_masked(name: str, value: Any) -> None:
    record = json.loads(REDACTOR.line({name: value, "in": {name: value}}))
    assert record == {name: MASK, "in": {name: MASK}}


def test_values_of_every_kind_are_written() -> None:
    record = {
        "text": "a",
        "bytes": b"\xff\x00",
        "none": None,
        "yes": True,
        "number": 1.5,
        "nan": float("nan"),
        "big": 1 << 20_000,
        "list": (1, {"b"}),
        "deep": {"a": {"b": {"c": KEY}}},
        "object": ValueError("odd"),
        "prompt_tokens": 7,
    }
    written = json.loads(REDACTOR.line(record))
    assert written.pop("big").startswith("0x1000")
    assert written == {
        "text": "a",
        "bytes": "\ufffd\x00",
        "none": None,
        "yes": True,
        "number": 1.5,
        "nan": None,
        "list": [1, ["b"]],
        "deep": {"a": {"b": "{'c': " + repr(KEY)[0] + MASK + repr(KEY)[-1] + "}"}},
        "object": "odd",
        "prompt_tokens": 7,
    }


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\r\nb",
        '"}\n{"event":"forged"}',
        "\x1b[31mred",
        "\x9b31m",
        "\u2028\u2029\x85",
        "\u202eabc",
        "\x00",
        "\ud800",
        "😀",
    ],
)
def test_text_cannot_break_its_line(text: str) -> None:
    line = REDACTOR.line({"event": text, text: "x"})
    assert len(line.splitlines()) == 1
    assert all(character.isprintable() for character in line)
    assert json.loads(line)["event"] == text.encode("utf-8", "backslashreplace").decode()


def test_values_are_cut_at_1_kb_and_a_traceback_keeps_its_end() -> None:
    record = json.loads(REDACTOR.line({"a": "é" * 5000, "exception": "start " + "x" * 100_000 + " end", "b" * 5000: 1}))
    assert len(record["a"].encode()) <= 1024
    assert record["a"].endswith("é…")
    assert len(record["exception"].encode()) <= 8192
    assert record["exception"].endswith("x end")
    assert max(map(len, record)) <= 1024
    assert len(json.loads(REDACTOR.line({"n": list(range(1000))}))["n"]) == 32


def test_a_secret_at_the_cut_is_not_half_shown() -> None:
    for start in range(990, 1030):
        assert ENGINE_KEY[:6] not in REDACTOR.line({"a": "x" * start + ENGINE_KEY})


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just(KEY), st.just(f"a {ENGINE_KEY}\n")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(st.characters(), max_size=8), values, max_size=6))
def test_any_record_is_one_line_of_json_without_secrets(record: dict[str, Any]) -> None:
    line = REDACTOR.line(record)
    assert len(line.splitlines()) <= 1
    assert isinstance(json.loads(line), dict)
    assert "il-Canary" not in line
    assert ENGINE_KEY not in line


@pytest.mark.parametrize("piece", ["api_key", "api_key ", "authorization: ", "bearer ", "sk-", "cookie=", "a-api-key:b'"])
def test_hostile_text_costs_linear_time(piece: str) -> None:
    def cost_s(times: int) -> float:
        text = piece * times
        best_s = 1.0
        for _ in range(5):
            start = time.thread_time()  # of this thread's processor, whoever else wants it
            REDACTOR.text(text)
            best_s = min(best_s, time.thread_time() - start)
        return best_s

    assert cost_s(8000) < 40 * cost_s(400) + 0.001  # 20 times the text; quadratic would be 400 times the time


def test_a_secret_that_is_known_later_is_hidden_from_then_on() -> None:
    redactor = Redactor(["first-canary"])
    assert "later-canary" in redactor.line({"event": "later-canary"})
    redactor.hide("later-canary")
    redactor.hide("first-canary")
    line = redactor.line({"event": "later-canary", "why": "first-canary and later-canary"})
    assert "canary" not in line
