"""What was made of an answer, as counts: those of one attempt are those at its end without those at its begin. PURE."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from gateway.request import FailureKind, Fault, FinishReason, Usage

_NONE: Mapping[FailureKind, int] = MappingProxyType({})


class Made(msgspec.Struct, frozen=True):
    """Of one answer, or of several that came at once: `calls` are whole tool calls, `ended_thoughts` those that the gateway
    ended, `failures` counts by kind, `faults` the first of them with what the model wrote there, `finish_reasons` of those that
    came to their end."""

    usage: Usage = Usage()
    calls: int = 0
    ended_thoughts: int = 0
    failures: Mapping[FailureKind, int] = _NONE
    faults: tuple[Fault, ...] = ()
    finish_reasons: tuple[FinishReason, ...] = ()

    def since(self, before: "Made") -> "Made":
        """What came after `before`, which is the same answer as it was earlier. The prompt, and what was cached of it, is no part
        of that: it was made before."""
        usage, was = self.usage, before.usage
        failures = {kind: count - before.failures.get(kind, 0) for kind, count in self.failures.items()}
        return Made(
            Usage(
                completion_tokens=max(usage.completion_tokens - was.completion_tokens, 0),
                reasoning_tokens=max(usage.reasoning_tokens - was.reasoning_tokens, 0),
            ),
            self.calls - before.calls,
            self.ended_thoughts - before.ended_thoughts,
            {kind: count for kind, count in failures.items() if count},
            self.faults[len(before.faults) :],
            self.finish_reasons[len(before.finish_reasons) :],
        )
