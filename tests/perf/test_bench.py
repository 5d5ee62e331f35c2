"""The bench itself: its gate can fail, its CPU time is right, and its servers answer what they should."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from perf.bench import PASSED, REFERENCE, RENDERED, Cost, Plan, Target, engine, measure, over_gate, reference, summary, table
from perf.client import AnswerError, Tally, chat_request, connect
from perf.processes import BenchError, cpu_s, post, started, tree

SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"


@pytest.mark.parametrize(
    ("chunk_us", "request_us", "faults"),
    [
        (199.0, 1590.0, []),
        (201.0, 1590.0, ["a chunk costs 2.01x"]),
        (199.0, 1812.0, ["a request costs 4.53x"]),
        (400.0, 4000.0, ["a chunk costs 4.00x", "a request costs 10.00x"]),
    ],
)
def test_the_gate_holds_what_is_passed_on_to_its_limits(chunk_us: float, request_us: float, faults: list[str]) -> None:
    costs = {REFERENCE: Cost(100, 400, 1, 1), PASSED: Cost(chunk_us, request_us, 1, 1), RENDERED: Cost(9999, 9999, 1, 1)}
    found = over_gate(summary([costs, costs]))
    assert [fault.partition(" the reference")[0] for fault in found] == faults


def test_ratios_are_medians_over_the_rounds() -> None:
    rounds = [
        {REFERENCE: Cost(100, 400, 1, 1), PASSED: Cost(150, 800, 1, 1)},
        {REFERENCE: Cost(300, 400, 1, 1), PASSED: Cost(300, 800, 1, 3)},
        {REFERENCE: Cost(100, 400, 1, 2), PASSED: Cost(900, 800, 1, 2)},
    ]
    rows = summary(rounds)
    assert (rows[0].chunk_us, rows[0].chunk_ratio) == (100, 1.0)
    assert (rows[1].chunk_us, rows[1].chunk_ratio, rows[1].request_ratio, rows[1].requests_per_s) == (300, 1.5, 2.0, 2)
    assert "1.50" in table(rows, Plan()).splitlines()[-1]


def test_cpu_time_holds_that_of_children() -> None:
    command = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SPIN + 'time.sleep(30)'!r}]); time.sleep(30)"
    )
    parent = subprocess.Popen([sys.executable, "-c", command])
    try:
        used_s = 0.0
        while used_s < 0.45:  # the test's timeout ends it where the child is not counted
            used_s = cpu_s(parent.pid)
        children = tree(parent.pid)[1:]
        assert len(children) == 1
    finally:
        for process in tree(parent.pid)[1:]:
            os.kill(process, signal.SIGKILL)
        parent.kill()
        parent.wait()
    assert cpu_s(parent.pid) == 0.0


def test_a_process_that_does_not_become_ready_is_an_error_with_its_output(tmp_path: Path) -> None:
    command = ["-c", "print('no model file'); raise SystemExit(1)"]
    with pytest.raises(BenchError, match="no model file"), started("broken", command, "http://127.0.0.1:9/health", tmp_path):
        pass


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[int, Target, Target]]:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(engine(tmp_path))
        first = stack.enter_context(reference(port, tmp_path))
        yield port, first, stack.enter_context(reference(port, tmp_path, "second"))


async def test_the_reference_against_itself(servers: tuple[int, Target, Target]) -> None:
    port, first, second = servers
    plan = Plan(rounds=1, streams=5, paced_s=0.5, requests_s=0.3, limit_s=20)
    rows = summary(await measure([first, second], port, plan))
    assert [(row.name, row.chunk_us > 0, row.request_us > 0) for row in rows] == [
        ("reference", True, True),
        ("second", True, True),
    ]
    assert (rows[0].chunk_ratio, rows[0].request_ratio) == (1.0, 1.0)


async def test_an_answer_that_is_not_whole_is_an_error(servers: tuple[int, Target, Target]) -> None:
    _, first, _ = servers
    client = await connect(first.port, Tally(), b"word")
    try:
        with pytest.raises(AnswerError, match="3 of 4 tokens"):
            await client.ask(chat_request(first.port, "m", 3, stream=False), 4)
    finally:
        client.close()


def ask(port: int, path: str, body: dict[str, object]) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        data = answer.read()
        assert isinstance(data, bytes)
        return data


def events(body: bytes) -> list[bytes]:
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]


@pytest.mark.parametrize("itl_ms", [0, 2])
def test_the_engine_and_the_reference_speak_their_protocols(servers: tuple[int, Target, Target], itl_ms: int) -> None:
    port, proxy, _ = servers
    post(port, f"/pace?itl_ms={itl_ms}")
    text = " word word word"
    for at, model in ((port, "mock"), (proxy.port, "mine")):
        asked = {"model": model, "max_tokens": 3, "messages": []}
        whole = json.loads(ask(at, "/v1/chat/completions", asked))
        assert (whole["model"], whole["choices"][0]["message"]["content"]) == (model, text)
        *chunks, done = events(ask(at, "/v1/chat/completions", {**asked, "stream": True}))
        read = [json.loads(chunk) for chunk in chunks]
        assert {chunk["model"] for chunk in read} == {model}
        assert "".join(choice["delta"].get("content", "") for chunk in read for choice in chunk["choices"]) == text
        assert (done, read[-1]["usage"]["completion_tokens"], len(read)) == (b"[DONE]", 3, 5)

    assert json.loads(ask(port, "/completion", {"prompt": [1], "n_predict": 3}))["content"] == text
    native = [json.loads(event) for event in events(ask(port, "/completion", {"prompt": [1], "n_predict": 3, "stream": True}))]
    assert "".join(event["content"] for event in native) == text
    assert [event["tokens_predicted"] for event in native] == [1, 2, 3, 3]
    assert [event["stop"] for event in native] == [False, False, False, True]
