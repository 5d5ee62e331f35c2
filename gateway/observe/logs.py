"""Logging: every record of ours and of the libraries is one line of JSON, without secrets.

Invariant: whoever logs, structlog or the standard library, the line comes out of one `Redactor`.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gateway.observe.redact import Redactor

Level = Literal["debug", "info", "warning", "error"]


def record_writer(stream: TextIO | None = None, secrets: Iterable[str] | Redactor = ()) -> Callable[[Mapping[str, object]], None]:
    """Writes records, one a line, past the loggers: for what is written on each request. Without a stream: standard error."""
    out = stream if stream is not None else sys.stderr
    redactor = secrets if isinstance(secrets, Redactor) else Redactor(secrets)

    def write(record: Mapping[str, object]) -> None:
        out.write(redactor.line(record) + "\n")
        out.flush()

    return write


def configure_logging(stream: TextIO | None = None, level: Level = "info", secrets: Iterable[str] | Redactor = ()) -> None:
    """Sets up the process's logging, once, before anything is logged. Without a stream: standard error.

    Servers that would set up their own must be told not to (uvicorn: `log_config=None`).
    """
    out = stream if stream is not None else sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    redactor = secrets if isinstance(secrets, Redactor) else Redactor(secrets)

    def render(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
        return redactor.line(event)

    stamp: list[Processor] = [structlog.stdlib.add_log_level, structlog.processors.MaybeTimeStamper("iso", utc=True, key="ts")]
    structlog.configure(
        processors=[*stamp, structlog.processors.format_exc_info, render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *stamp],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.INFO))  # libraries' debug output holds requests
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and end, once a port, are said by the gateway
