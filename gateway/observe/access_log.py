"""The access log: one record a request, when it ended. It holds numbers, names and our own words, never what was said."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from gateway.events import Event, Finished


class AccessLog:
    """An observer. `write` redacts and writes one record; `wall_clock_s` gives Unix time."""

    hears = (Finished,)

    def __init__(self, write: Callable[[Mapping[str, object]], None], wall_clock_s: Callable[[], float]) -> None:
        self._write = write
        self._wall_clock_s = wall_clock_s

    def __call__(self, event: Event) -> None:
        """Writes the record of a request that is over."""
        if not isinstance(event, Finished):
            return
        usage = event.usage
        self._write(
            {
                "event": "request",
                "level": "info",
                "ts": datetime.fromtimestamp(self._wall_clock_s(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "request_id": event.request_id,
                "trace_id": event.trace_id,
                "dialect": event.dialect,
                "model": event.model,
                "engine": event.engine,
                "format": event.format,
                "outcome": event.outcome,
                "reason": event.reason,
                "status": event.status,
                "streamed": event.streamed,
                "attempts": event.attempts,
                "retries": event.retries,
                "resumes": event.resumes,
                "ttft_s": _rounded(event.ttft_s),
                "first_output_s": _rounded(event.first_output_s),
                "render_s": _rounded(event.rendered[1] - event.rendered[0] if event.rendered is not None else None),
                "tokenize_s": _rounded(event.tokenize_s),
                "queue_s": _rounded(event.queue_s),
                "prefill_s": _rounded(event.prefill_s),
                "decode_s": _rounded(event.decode_s),
                "duration_s": _rounded(event.duration_s),
                "client_stall_s": _rounded(event.client_stall_s),
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
                "reasoning_tokens": usage.reasoning_tokens,
                "finish_reason": event.finish_reason,
                "tool_calls": event.tool_calls,
                "with_tools": event.with_tools,
                "ended_thoughts": event.ended_thoughts,
                "failures": dict(event.failures),
                "notes": event.notes,
            }
        )


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 6)
