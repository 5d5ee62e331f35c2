"""The W3C Trace Context headers: `traceparent` and `tracestate`, read and written.

Invariant: whatever the bytes, `read` gives a context whose headers are valid, or None; it never raises. What a client sends in
another form is not passed on.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED = 0x01
RANDOM = 0x02  # level 2 of the standard: the id's last 56 bits are random
MAX_STATE_CHARS = 512  # what everyone must pass on; of a longer one the last members are left out
MAX_STATE_MEMBERS = 32
_HEADER_BYTES = 8 * 1024  # a longer state is not looked at

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_MEMBER = re.compile(
    r"(?:[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where in which trace a call was made: ids in lower-case hexadecimal digits, 32 of the trace and 16 of the caller's span."""

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the caller records the trace."""
        return bool(self.flags & SAMPLED)

    def headers(self) -> Mapping[str, str]:
        """What is sent to whom is called."""
        parent = {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{self.flags & (SAMPLED | RANDOM):02x}"}
        return {**parent, TRACESTATE: self.state} if self.state else parent


def read(headers: Collection[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context of a request with these headers, their names in lower case. None: it has none, or none that is valid; a state
    that is not valid is left out alone."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1 or (found := _PARENT.fullmatch(parents[0].strip(b" \t"))) is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None) or not (trace_id.strip(b"0") and span_id.strip(b"0")):
        return None
    states = [value for name, value in headers if name == b"tracestate"]
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16), _state(states) if states else "")


def _state(values: list[bytes]) -> str:
    """The members of all headers as one, in their order; empty where one is not valid or stands twice."""
    if sum(map(len, values)) > _HEADER_BYTES:
        return ""
    members = [part for value in values for each in value.decode("latin-1").split(",") if (part := each.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > MAX_STATE_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(_within(members))


def _within(members: list[str]) -> Iterator[str]:
    """The first of them that are short enough together."""
    left = MAX_STATE_CHARS + 1
    for member in members:
        left -= len(member) + 1
        if left < 0:
            return
        yield member
