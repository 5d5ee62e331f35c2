"""The access log: exactly one record a request, with documented fields and nothing that was said."""

import io
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.events import DONE

from gateway.events import AttemptStarted, ClientGone, FirstToken, Received
from gateway.observe.access_log import AccessLog
from gateway.observe.logs import record_writer
from gateway.request import Usage

DOCS = Path(__file__).parents[2] / "docs"
CANARY = "planted-canary-42"
LOGGED = replace(
    DONE,
    request_id="r1",
    attempts=2,
    retries=1,
    resumes=1,
    duration_s=1.23456789,
    ttft_s=0.25,
    first_output_s=0.75,
    rendered=(10.0, 10.25),
    tokenize_s=0.1,
    prefill_s=0.2,
    decode_s=0.7,
    queue_s=0.001,
    client_stall_s=0.5,
    usage=Usage(10, 5, 4, 3),
    finish_reasons=("tool_calls",),
    tool_calls=1,
    failures=(("invalid_json", 2),),
    notes=("developer message given as system",),
    trace_id="0af7651916cd43dd8448eb211c80319c",
)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def test_one_record_a_request_with_every_field(out: io.StringIO) -> None:
    observe = AccessLog(record_writer(out, [CANARY]), wall_clock_s=lambda: 1_800_000_000.25)
    for event in (
        Received("r1", "openai_chat", 1.0),
        AttemptStarted("r1", 1, "a", "m", 1.0),
        FirstToken("r1", 1, "a", "m", 0.25),
        ClientGone("r1", 1, "a"),
        LOGGED,
    ):
        observe(event)
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue()) == {
        "event": "request",
        "level": "info",
        "ts": "2027-01-15T08:00:00.250Z",
        "request_id": "r1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "dialect": "openai_chat",
        "model": "m",
        "engine": "a",
        "format": "hermes",
        "outcome": "ok",
        "reason": None,
        "status": 200,
        "streamed": True,
        "attempts": 2,
        "retries": 1,
        "resumes": 1,
        "ttft_s": 0.25,
        "first_output_s": 0.75,
        "render_s": 0.25,
        "tokenize_s": 0.1,
        "queue_s": 0.001,
        "prefill_s": 0.2,
        "decode_s": 0.7,
        "duration_s": 1.234568,
        "client_stall_s": 0.5,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 4,
        "reasoning_tokens": 3,
        "finish_reason": "tool_calls",
        "tool_calls": 1,
        "with_tools": True,
        "ended_thoughts": 0,
        "failures": {"invalid_json": 2},
        "notes": ["developer message given as system"],
    }


def test_every_field_is_in_the_documents(out: io.StringIO) -> None:
    AccessLog(record_writer(out), wall_clock_s=lambda: 0.0)(LOGGED)
    fields = json.loads(out.getvalue()).keys() - {"event"}
    section = (DOCS / "admin.md").read_text().partition("## The access log")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    stages = {"render_s", "queue_s", "prefill_s", "decode_s", "client_stall_s"}
    assert named | stages == fields
    assert all(f"`{stage}`" in section for stage in stages)


def test_a_hostile_record_is_still_one_bounded_line_without_secrets(out: io.StringIO) -> None:
    observe = AccessLog(record_writer(out, [CANARY]), wall_clock_s=lambda: 0.0)
    hostile = f'\n{{"event":"forged"}}\x1b[2J\u2028{CANARY}' + "x" * 10_000
    observe(replace(LOGGED, request_id=hostile, reason=hostile, ttft_s=None, notes=(hostile,) * 100))
    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    assert len(lines[0]) < 64_000
    assert CANARY not in lines[0]
    assert json.loads(lines[0])["ttft_s"] is None
