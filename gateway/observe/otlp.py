"""Spans to a collector by OTLP: the only module that knows OpenTelemetry's packages. It is imported where they are wanted.

Exporters' standard environment variables (`OTEL_EXPORTER_OTLP_HEADERS`, `…_CERTIFICATE`, `OTEL_SERVICE_NAME`, …) hold. What
the packages log goes to whom asks for spans to be sent, and nowhere else.
"""

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.observe.genai import CONVENTIONS
from gateway.observe.spans import Span

HTTP_PATH = "/v1/traces"
SEND_S = 5.0
_WHY_CHARS = 300


class Otlp:
    """A connection to one collector: `http(s)://HOST:PORT[/PATH]`, or `grpc(s)://HOST:PORT`."""

    def __init__(self, endpoint: str, version: str, instance: str) -> None:
        self._heard = _Heard()
        self._exporter = _exporter(endpoint)
        about = {"service.version": version, "service.instance.id": instance}
        made = Resource.create(about)
        named = not str(made.attributes["service.name"]).startswith("unknown_service")  # by OTEL_SERVICE_NAME
        self._resource = made if named else made.merge(Resource({"service.name": "interlock"}))
        self._scope = InstrumentationScope("interlock", version, attributes={"conventions": CONVENTIONS})

    def send(self, spans: Sequence[Span]) -> str | None:
        """Sends them, within some seconds; gives why it could not.

        Raises:
            Exception: whatever the packages raise, as where the connection was closed meanwhile.
        """
        self._heard.last = ""
        result = self._exporter.export([self._readable(span) for span in spans])
        if result is SpanExportResult.SUCCESS:
            return None
        return self._heard.last or "the exporter says no more"

    def close(self) -> None:
        """Ends the connection, and a `send` that runs."""
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        trace_id, state, flags = int(span.trace_id, 16), TraceState.from_header([span.state]), TraceFlags(TraceFlags.SAMPLED)
        parent = None
        if span.parent_id is not None:
            parent = SpanContext(trace_id, span.parent_id, span.remote, flags, state)
        return ReadableSpan(
            span.name,
            SpanContext(trace_id, span.span_id, False, flags, state),
            parent,
            self._resource,
            span.attributes,
            kind=SpanKind[span.kind.upper()],
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=span.begin_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _exporter(endpoint: str) -> SpanExporter:
    parts = urlsplit(endpoint)
    if parts.scheme in ("grpc", "grpcs"):
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc  # noqa: PLC0415  # takes long to import

        return grpc.OTLPSpanExporter(parts.netloc, insecure=parts.scheme == "grpc", timeout=SEND_S)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http  # noqa: PLC0415  # nor is both wanted

    whole = endpoint if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{HTTP_PATH}"
    return http.OTLPSpanExporter(whole, timeout=SEND_S)


class _Heard(logging.Handler):
    """The last thing that the packages logged, which would else have a line for each batch that fails. It stays: a `send` that
    was cut may say so later."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps it."""
        self.last = record.getMessage()[:_WHY_CHARS]
