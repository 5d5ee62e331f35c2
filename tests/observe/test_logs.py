"""Logging: structlog's and the libraries' records come out of the same redactor, as one line each."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.observe.logs import Level, configure_logging

CANARY = "planted-canary-42"


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def records(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_record_of_ours(out: io.StringIO) -> None:
    configure_logging(out, secrets=[CANARY])
    structlog.get_logger("x").info("started", port=8080, note=f"a\n{CANARY}")
    (record,) = records(out)
    assert record.pop("ts").endswith("Z")
    assert record == {"event": "started", "port": 8080, "note": "a\n[redacted]", "level": "info"}


def test_a_given_time_is_kept(out: io.StringIO) -> None:
    configure_logging(out)
    structlog.get_logger().info("request", ts="2026-01-01T00:00:00Z")
    assert records(out)[0]["ts"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(("level", "seen"), [("debug", ["d", "i", "w"]), ("info", ["i", "w"]), ("warning", ["w"])])
def test_the_level_holds(out: io.StringIO, level: Level, seen: list[str]) -> None:
    configure_logging(out, level)
    log = structlog.get_logger()
    log.debug("d")
    log.info("i")
    log.warning("w")
    assert [record["event"] for record in records(out)] == seen


def test_a_librarys_record_is_json_too_and_its_debug_output_never_comes(out: io.StringIO) -> None:
    configure_logging(out, "debug", [CANARY])
    library = logging.getLogger("some.library")
    library.debug("headers %s", CANARY)
    library.warning("lost %s of\n%d", CANARY, 2)
    (record,) = records(out)
    assert (record["event"], record["level"], record["logger"]) == ("lost [redacted] of\n2", "warning", "some.library")


def test_tracebacks_are_one_line_without_secrets(out: io.StringIO) -> None:
    configure_logging(out, "debug", [CANARY])
    try:
        raise ValueError(f"Authorization: Bearer {CANARY} and sk-abcdefgh12345")
    except ValueError as error:
        structlog.get_logger().error("ours", exc_info=error)
        logging.getLogger("lib").exception("theirs")
    ours, theirs = records(out)
    for record in (ours, theirs):
        assert "ValueError" in record["exception"]
    assert CANARY not in out.getvalue()
    assert "sk-abcdefgh12345" not in out.getvalue()


def test_without_a_stream_it_is_standard_error(out: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    structlog.get_logger().info("here")
    captured = capsys.readouterr()
    assert (captured.out, json.loads(captured.err)["event"]) == ("", "here")
