import inspect

import pytest

from gateway import errors
from gateway.errors import (
    AnswerRefused,
    BadRequest,
    BodyTimeout,
    BodyTooLarge,
    ClientError,
    ClientStalled,
    ContextTooLong,
    Draining,
    EngineBroke,
    EngineDiffers,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineSilent,
    EngineTimeout,
    EngineUnreachable,
    ForeignSite,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    ModelNotFound,
    NotServed,
    PoisonRequest,
    Rejected,
    RouteNotFound,
    SettingsError,
    UnsupportedEncoding,
    shown,
)

CASES: list[tuple[GatewayError, int, str, str | None, str, bool]] = [
    (BadRequest("x", param="n"), 400, "invalid_request_error", None, "bad_request", False),
    (ContextTooLong(10, 5), 400, "invalid_request_error", "context_length_exceeded", "context_length_exceeded", False),
    (ModelNotFound("x"), 404, "invalid_request_error", "model_not_found", "model_not_found", False),
    (RouteNotFound("x"), 404, "invalid_request_error", "unknown_url", "unknown_url", False),
    (MethodNotAllowed("x"), 405, "invalid_request_error", "method_not_allowed", "method_not_allowed", False),
    (ForeignSite("x"), 403, "invalid_request_error", "foreign_site", "foreign_site", False),
    (BodyTooLarge("x"), 413, "invalid_request_error", "request_too_large", "body_too_large", False),
    (UnsupportedEncoding("x"), 415, "invalid_request_error", "unsupported_encoding", "unsupported_encoding", False),
    (ClientStalled("x"), 408, "invalid_request_error", "client_stalled", "client_stalled", False),
    (BodyTimeout("x"), 408, "invalid_request_error", "request_timeout", "body_timeout", False),
    (Rejected("x", reason="queue_full", retry_after_s=2), 429, "overloaded_error", "queue_full", "queue_full", True),
    (Rejected("x", reason="no_engine", retry_after_s=2), 503, "overloaded_error", "no_engine", "no_engine", True),
    (EngineError("x"), 502, "upstream_error", "upstream_error", "engine", True),
    (EngineUnreachable("x"), 502, "upstream_error", "engine_unreachable", "unreachable", True),
    (EngineRefused("x", status=422), 422, "upstream_error", "engine_refused", "refused", True),
    (EngineBroke("x"), 502, "upstream_error", "engine_broke", "broke", True),
    (EngineGone("x"), 502, "upstream_error", "engine_broke", "broke", True),
    (EngineDiffers("x"), 502, "upstream_error", "engine_broke", "differs", True),
    (PoisonRequest("x"), 502, "upstream_error", "poison_request", "poison", True),
    (EngineTimeout("headers", 3), 504, "upstream_error", "engine_timeout", "headers", True),
    (EngineSilent("headers", 3), 504, "upstream_error", "engine_timeout", "headers", True),
    (AnswerRefused("x", kind="unknown_tool"), 502, "model_output_error", "unknown_tool", "unknown_tool", False),
    (NotServed("x"), 503, "server_error", "model_not_served", "model_not_served", False),
    (Draining("x"), 503, "server_error", "draining", "draining", True),
    (InternalError("x"), 500, "server_error", "internal_error", "internal", False),
    (GatewayError("x"), 500, "server_error", None, "internal", False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_each_error_carries_its_meaning(case: tuple[GatewayError, int, str, str | None, str, bool]) -> None:
    error = case[0]
    assert (error, error.status, error.type, error.code, error.reason, error.retryable) == case
    assert str(error) == error.message
    assert isinstance(error, ClientError) == (error.type == "invalid_request_error")


def test_every_class_is_in_the_table_and_in_the_drawing() -> None:
    classes = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, GatewayError)}
    assert classes == {type(case[0]) for case in CASES} | {ClientError}
    drawing = errors.__doc__ or ""
    assert [cls.__name__ for cls in classes if cls.__name__ not in drawing] == []


@pytest.mark.parametrize(
    ("error", "retry_after_s"),
    [
        (Rejected("x", reason="queue_full", retry_after_s=2.5), 2.5),
        (Draining("x"), 1.0),
        (EngineBroke("x"), None),
        (BadRequest("x"), None),
    ],
)
def test_when_a_client_may_try_again(error: GatewayError, retry_after_s: float | None) -> None:
    assert error.retry_after_s == retry_after_s


def test_an_instances_own_code_stays_its_own() -> None:
    assert EngineRefused("x", status=400, param="n", code="invalid_value").code == "invalid_value"
    assert EngineRefused("x", status=400).code == "engine_refused"
    assert Rejected("x", reason="queue_full", retry_after_s=1).status == 429
    assert Rejected.status == 500


def test_harnesses_find_the_words_they_compact_by() -> None:
    error = ContextTooLong(9000, 8192)
    assert "maximum context length is 8192 tokens" in error.message
    assert "9000 tokens" in error.message
    assert error.param == "messages"


def test_an_unknown_model_is_named_but_not_at_any_length() -> None:
    assert ModelNotFound("gpt-x").message == "The model 'gpt-x' does not exist or is not served here."
    assert ModelNotFound("gpt-x").param == "model"
    assert len(ModelNotFound("x" * 100_000).message) < 200


def test_a_timeout_names_its_stage_and_limit() -> None:
    error = EngineTimeout("first_token", 0.5)
    assert error.stage == "first_token"
    assert "stage first_token, limit 0.5 s" in error.message


def test_settings_errors_come_all_at_once() -> None:
    error = SettingsError(("a: wrong", "b: missing"))
    assert error.problems == ("a: wrong", "b: missing")
    assert str(error) == "a: wrong\nb: missing"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "'a'"), ("x" * 80, "'" + "x" * 80 + "'"), ("x" * 81, "'" + "x" * 80 + "…'"), ("a\nb\x1b[0m", r"'a\nb\x1b[0m'")],
)
def test_a_clients_text_is_quoted_and_cut(text: str, expected: str) -> None:
    assert shown(text) == expected
