"""What a request carries of the trace that it is a part of: the id for the log, and what its engines are told.

Where nothing is recorded, engines are told what the client told us.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from engines.base import Chunk
from gateway.wire.trace_context import TraceContext, read

Headers = Collection[tuple[bytes, bytes]]
Take = Callable[[Sequence[Chunk]], bool]
_NONE: Mapping[str, str] = MappingProxyType({})


class Trace:
    """A trace of which nothing is recorded here. `context` is told to the engines; None: they are told nothing."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context = context

    @property
    def id(self) -> str | None:
        """The trace's, where it is known."""
        return None if self.context is None else self.context.trace_id

    @property
    def sampled(self) -> bool:
        """Whether it is recorded, here or by the caller."""
        return self.context is not None and self.context.sampled

    def headers(self, attempt: int) -> Mapping[str, str]:
        """What the engine of this attempt is told."""
        return _NONE if self.context is None else self.context.headers()

    def timed(self, attempt: int, take: Take) -> Take:
        """What parses an attempt's chunks: where the trace is recorded, one that counts the time of it."""
        return take


def passed_on(request_id: str, headers: Headers, at_s: float) -> Trace:
    """The trace of a request where the gateway makes no spans."""
    context = read(headers)
    return UNTRACED if context is None else Trace(context)


UNTRACED = Trace()

Begin = Callable[[str, Headers, float], Trace]
"""Begins a request's trace: its id, its headers with lower-case names, and when it came, on the loop's clock."""
