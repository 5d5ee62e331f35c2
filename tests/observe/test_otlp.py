"""Spans as the collector gets them, where it is, and why it did not."""

import asyncio
from collections.abc import Iterator

import pytest
from support.collector import Collector

from gateway.observe.otlp import Otlp
from gateway.observe.spans import Span

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = Span(
    "chat m",
    "server",
    TRACE,
    0xA,
    0xB,
    10**18,
    10**18 + 5,
    {"words": ("a", "b"), "n": 3, "s": 0.5, "yes": True, "text": "é"},
    failed=True,
    state="a=1,b=2",
    remote=True,
)


@pytest.fixture(params=["http", "grpc"])
def nobody(request: pytest.FixtureRequest, unused_tcp_port: int) -> Iterator[Otlp]:
    otlp = Otlp(f"{request.param}://127.0.0.1:{unused_tcp_port}", "1.2.3", "one")
    yield otlp
    otlp.close()


async def sent(otlp: Otlp, *spans: Span) -> str | None:
    try:
        return await asyncio.to_thread(otlp.send, spans)
    finally:
        otlp.close()


async def test_a_span_arrives_as_it_is() -> None:
    async with Collector().over_http() as collector:
        assert await sent(Otlp(collector.url, "1.2.3", "one"), SPAN) is None
    (got,) = collector.spans
    assert (got.name, got.kind, got.failed, got.remote, got.state) == ("chat m", "server", True, True, "a=1,b=2")
    assert (got.trace_id, got.span_id, got.parent_id) == (TRACE, f"{0xA:016x}", f"{0xB:016x}")
    assert (got.begin_ns, got.end_ns) == (10**18, 10**18 + 5)
    assert got.attributes == {"words": ["a", "b"], "n": 3, "s": 0.5, "yes": True, "text": "é"}
    about = {name: collector.resource[name] for name in ("service.name", "service.version", "service.instance.id")}
    assert about == {"service.name": "interlock", "service.version": "1.2.3", "service.instance.id": "one"}


async def test_the_standard_variables_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-eu")
    async with Collector().over_http() as collector:
        assert await sent(Otlp(collector.url, "1", "one"), SPAN) is None
    assert collector.resource["service.name"] == "gateway-eu"


@pytest.mark.parametrize(
    ("path", "asked"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/v1/traces", "/v1/traces"), ("/in", "/in")]
)
async def test_a_path_is_taken_as_it_is(path: str, asked: str) -> None:
    async with Collector().over_http() as collector:
        assert await sent(Otlp(collector.url + path, "1", "one"), SPAN) is None
    assert collector.paths == [asked]


async def test_over_grpc() -> None:
    with Collector().over_grpc() as collector:
        assert await sent(Otlp(collector.url, "1", "one"), SPAN) is None
    assert [got.name for got in collector.spans] == ["chat m"]


def test_nobody_is_there(nobody: Otlp) -> None:
    why = nobody.send([SPAN])
    assert why is not None
    assert "Failed to export" in why


def test_after_its_end_nothing_is_sent(nobody: Otlp) -> None:
    nobody.close()
    why = nobody.send([SPAN])
    assert why is not None
    assert "shutdown" in why
