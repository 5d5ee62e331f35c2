"""Error answers: whose fault, which status, and nothing in the words that says where the engine is."""

import json

import pytest

from engines.refusal import refusal
from gateway.errors import ContextTooLong, EngineBroke, EngineRefused, GatewayError


def answer(status: int, **error: object) -> GatewayError:
    return refusal(status, json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    ("status", "kind", "shown"),
    [
        (400, EngineRefused, 400),
        (404, EngineRefused, 404),
        (422, EngineRefused, 422),
        (429, EngineRefused, 429),
        (401, EngineRefused, 502),
        (403, EngineRefused, 502),
        (500, EngineRefused, 502),
        (503, EngineRefused, 503),
        (302, EngineRefused, 502),
    ],
)
def test_a_status_is_passed_on_where_the_client_can_do_something(status: int, kind: type, shown: int) -> None:
    error = answer(status, message="no")
    assert type(error) is kind
    assert error.status == shown


def test_words_param_and_code_of_a_4xx_are_the_engines() -> None:
    error = answer(400, message="top_p must be in (0, 1]", param="top_p", code="invalid_value")
    assert error.message == "The engine refused the request: top_p must be in (0, 1]"
    assert (error.param, error.code) == ("top_p", "invalid_value")
    assert answer(400, message="x", code=400).code == "engine_refused"


@pytest.mark.parametrize(
    "words",
    [
        "cannot reach http://engine.internal:8000/v1",
        "at 10.1.2.3:8000",
        "at 10.1.2.3",
        "from localhost:8080",
        "on [::1]:80",
        "no file /srv/models/secret.gguf",
    ],
)
def test_addresses_and_paths_are_cut_out(words: str) -> None:
    message = answer(400, message=words).message
    assert "…" in message
    assert not any(part in message for part in ("engine.internal", "10.1.2.3", "localhost", "::1", "secret"))


def test_words_that_only_look_a_little_like_addresses_stay() -> None:
    words = "use a/b or 1.5/2, ratio 3:4, version 1.2.3"
    assert answer(400, message=words).message.endswith(words)


def test_long_words_are_cut_and_missing_ones_are_the_status() -> None:
    assert len(answer(400, message="x" * 5000).message) < 600
    assert answer(418).message == "The engine refused the request: 418"


@pytest.mark.parametrize("body", [b"", b"<html>502 at 10.0.0.1</html>", b"[]", b'{"error":5}', b"\xff"])
def test_an_answer_that_cannot_be_read_is_a_broken_engine(body: bytes) -> None:
    error = refusal(500, body)
    assert type(error) is EngineBroke
    assert error.message == "The engine answered with status 500 and no error that can be read."


def test_flat_and_textual_errors_are_read() -> None:
    assert refusal(400, b'{"object":"error","message":"flat","code":400}').message.endswith("flat")
    assert refusal(400, b'{"error":"plain"}').message.endswith("plain")
    assert refusal(400, b'{"detail":"other shape"}').message.endswith("400")


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."},
        {"type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096, "message": "x"},
    ],
)
def test_a_prompt_that_is_too_long_is_said_in_the_words_that_harnesses_know(error: dict[str, object]) -> None:
    found = answer(400, **error)
    assert isinstance(found, ContextTooLong)
    assert "maximum context length is 4096 tokens" in found.message
    assert "5000 tokens" in found.message


def test_an_engines_failure_is_told_in_its_own_words() -> None:
    body = b'{"error":{"code":500,"message":"image input is not supported at /models/a/b.gguf","type":"server_error"}}'
    error = refusal(500, body)
    assert (error.status, error.message) == (502, "The engine answered with status 500: image input is not supported at \u2026")
    assert refusal(500, b'{"error":{"code":500}}').message == "The engine answered with status 500."
