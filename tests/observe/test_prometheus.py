"""The real Prometheus scrapes our metrics, and every one of them can be queried there."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from support.events import DONE, MADE
from support.metrics import metrics_of
from support.prometheus import prometheus, scraping
from support.services import program
from support.wiring import fleet

from gateway.events import AttemptStarted
from gateway.observe.group import Served
from gateway.observe.load import Load
from gateway.observe.metrics import Metrics

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
    registry = fleet("a", "b")
    metrics = metrics_of([Served("m", ("a", "b"), ("hermes",))], lambda known: Load(known, registry))
    metrics.engine_info("a", "vllm", "0.33.0", "m")
    for done in (MADE, DONE, MADE):
        metrics(done)
    metrics(replace(DONE, request_id="r2", outcome="timeout", reason="first_token"))
    registry.running.apply(AttemptStarted("r3", 1, engine="a", model="m", at_s=0.0))
    return metrics


@contextmanager
def served(metrics: Metrics, accepts: list[str]) -> Iterator[int]:
    """The metrics over HTTP on a loopback port; `accepts` collects what scrapers asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            accepts.append(self.headers.get("Accept", ""))
            content_type, body = metrics.copied()(accepts[-1])
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


def test_every_metric_can_be_queried_in_a_real_prometheus(tmp_path: Path) -> None:
    accepts: list[str] = []
    with served(filled(), accepts) as port, prometheus(scraping(f"http://127.0.0.1:{port}", every="200ms"), tmp_path) as asked:
        asked.scraped()
        assert {query: asked.values(query) for query in QUERIES} == {query: [value] for query, value in QUERIES.items()}
        assert asked.values("up") == [1]
    assert "application/openmetrics-text" in accepts[0]


def test_promtool_finds_no_fault() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=filled().copied()("")[1], capture_output=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
