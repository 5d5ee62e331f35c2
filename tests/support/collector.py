"""A collector of spans on a loopback port, by OTLP over HTTP or gRPC, that keeps what it is sent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

KINDS = {1: "internal", 2: "server", 3: "client"}
FAILED = 2


@dataclass(frozen=True)
class Got:
    """One span as it came."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool
    state: str
    remote: bool


class Collector:
    """`requests` are the bodies, `resource` the attributes of the last. `hangs`: it takes connections, and answers nothing."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Got] = []
        self.requests: list[bytes] = []
        self.paths: list[str] = []
        self.resource: dict[str, Any] = {}
        self.hangs = False

    def take(self, body: bytes) -> bytes:
        """Keeps what a request holds."""
        self.requests.append(body)
        told = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for resource in told.resource_spans:
            self.resource = attributes_of(resource.resource.attributes)
            self.spans += [got(span) for scope in resource.scope_spans for span in scope.spans]
        answer: bytes = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
        return answer

    @contextlib.asynccontextmanager
    async def over_http(self, port: int = 0) -> AsyncIterator["Collector"]:
        tasks: set[asyncio.Task[Any]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    while True:
                        await self._answer(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        self.paths.append(head.split()[1])
        if self.hangs:
            await asyncio.Event().wait()
        answer = self.take(body)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n" % len(answer))
        writer.write(answer)
        await writer.drain()

    @contextlib.contextmanager
    def over_grpc(self) -> Iterator["Collector"]:
        outer = self

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # the service's own name
                outer.take(request.SerializeToString())
                return trace_service_pb2.ExportTraceServiceResponse()

        server = grpc.server(ThreadPoolExecutor(1))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]  # it is generated
        self.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield self
        finally:
            server.stop(0).wait()

    def one(self, name: str) -> Got:
        """The only span of this name."""
        (found,) = self.named(name)
        return found

    def named(self, name: str) -> list[Got]:
        """In the order of their beginnings."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.begin_ns)

    def tree(self) -> list[Any]:
        """The names below each span without a parent here, as `[name, [below], …]`, by their beginnings."""
        ids = {span.span_id for span in self.spans}
        return _below(self.spans, [span for span in self.spans if span.parent_id not in ids])


def _below(spans: Sequence[Got], roots: Sequence[Got]) -> list[Any]:
    told: list[Any] = []
    for root in sorted(roots, key=lambda span: (span.begin_ns, span.end_ns)):
        below = _below(spans, [span for span in spans if span.parent_id == root.span_id])
        told += [root.name, below] if below else [root.name]
    return told


def got(span: Any) -> Got:
    """A span of the wire."""
    return Got(
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes_of(span.attributes),
        span.status.code == FAILED,
        span.trace_state,
        bool(span.flags & 0x200),
    )


def attributes_of(pairs: Any) -> dict[str, Any]:
    """As plain values."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
