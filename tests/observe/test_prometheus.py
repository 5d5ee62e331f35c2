"""The real Prometheus scrapes our metrics, and every one of them can be queried there."""

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.events import DONE
from support.services import program

from gateway.events import AttemptStarted
from gateway.observe.metrics import Metrics, Served
from gateway.routing.inflight import InFlight

HISTOGRAMS = ["time_to_first_token", "inter_token_latency", "request_duration", "client_stall"]
QUERIES = {
    'interlock_requests_total{model="m",engine="a",dialect="openai_chat",outcome="ok"}': 1,
    'interlock_request_failures_total{model="m",outcome="timeout",reason="first_token"}': 1,
    'interlock_inflight_requests{model="m",engine="a"}': 1,
    'interlock_prompt_tokens_total{model="m",engine="a"}': 200,
    'interlock_completion_tokens_total{model="m",engine="a"}': 40,
    'interlock_cached_prompt_tokens_total{model="m",engine="a"}': 120,
    'interlock_tool_calls_total{model="m",engine="a",format="hermes"}': 4,
    'interlock_requests_with_tools_total{model="m",engine="a",format="hermes"}': 2,
    'interlock_parse_failures_total{model="m",engine="a",format="hermes",kind="invalid_json"}': 2,
    'interlock_engine_info{engine="a",kind="vllm",version="0.33.0",model="m"}': 1,
    **{f'count(interlock_{name}_seconds_bucket{{model="m",engine="a",le="+Inf"}})': 1 for name in HISTOGRAMS},
    'interlock_inter_token_latency_seconds_count{model="m",engine="a"}': 38,
}


def filled() -> Metrics:
    inflight = InFlight()
    metrics = Metrics([Served("m", ("a", "b"), ("hermes",))], ["openai_chat"], inflight, lambda _: False, {})
    metrics.engine_info("a", "vllm", "0.33.0", "m")
    metrics(DONE)
    metrics(replace(DONE, request_id="r2", outcome="timeout", reason="first_token"))
    inflight.apply(AttemptStarted("r3", 1, engine="a", model="m", at_s=0.0))
    return metrics


@contextmanager
def served(metrics: Metrics, accepts: list[str]) -> Iterator[int]:
    """The metrics over HTTP on a loopback port; `accepts` collects what scrapers asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            accepts.append(self.headers.get("Accept", ""))
            content_type, body = metrics.expose(accepts[-1])
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def prometheus(target_port: int, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes the port; gives its root URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: interlock, static_configs: [{{targets: ['127.0.0.1:{target_port}']}}]}}]\n"
    )
    command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=20)


def ask(root: str, query: str) -> list[float]:
    with urllib.request.urlopen(f"{root}/api/v1/query?query={urllib.parse.quote(query)}", timeout=5) as answer:
        return [float(series["value"][1]) for series in json.load(answer)["data"]["result"]]


def until(true: Callable[[], bool], limit_s: float = 30) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            if true():
                return
        except OSError:
            pass  # it is starting
        time.sleep(0.1)
    pytest.fail("Prometheus did not scrape in time")


def test_every_metric_can_be_queried_in_a_real_prometheus(tmp_path: Path) -> None:
    accepts: list[str] = []
    with served(filled(), accepts) as port, prometheus(port, tmp_path) as root:
        until(lambda: len(ask(root, "interlock_engine_info")) > 0)
        assert {query: ask(root, query) for query in QUERIES} == {query: [value] for query, value in QUERIES.items()}
        assert ask(root, "up") == [1]
    assert "application/openmetrics-text" in accepts[0]


def test_promtool_finds_no_fault() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=filled().expose()[1], capture_output=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
