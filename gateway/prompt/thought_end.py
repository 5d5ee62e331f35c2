"""What a chat template writes between a thought and what follows it, found by rendering marked conversations.

A thought that has used up its budget is ended by just that: the model was trained on it. Invariant: nothing is guessed. Of a
template that shows no thought, or ends it otherwise than its format says, nothing is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import BadRequest
from gateway.prompt.probe import Capabilities, with_thought
from gateway.prompt.rig import NAME, TOOLS, USER, call_of, without_content, written
from gateway.prompt.turn_end import Render
from gateway.wire.text import common_start

_THOUGHT, _SAID, _VALUE = "endthoughtmark", "endsaidmark", "endvaluemark"
_CALL_ID = "endcall01"  # nine alphanumerics, since some templates ask for just that


@dataclass(frozen=True, slots=True)
class ThoughtEnd:
    """The texts that end a thought: `before_any`, where a text or a call may follow, and `before_text`, which may say more."""

    before_any: str
    before_text: str


def thought_end(render: Render, can: Capabilities, closer: str) -> ThoughtEnd | None:
    """None where the template shows no thought, or ends it without the `closer` of its format. Of one that shows thoughts before
    calls only, the end is known up to the closer."""
    if can.reasoning is None:
        return None
    said = {"role": "assistant", "content": _SAID}
    text = _after_thought(render, [USER, with_thought(said, can.reasoning, _THOUGHT)], None, _SAID)
    called = _before_call(render, can, can.reasoning)
    if text is not None and closer in text:
        shared = common_start(text, called) if called is not None else text
        return ThoughtEnd(shared if closer in shared else text, text)
    if called is None or closer not in called:
        return None
    known = called[: called.index(closer) + len(closer)]
    return ThoughtEnd(known, known)


def _before_call(render: Render, can: Capabilities, field: str) -> str | None:
    """What stands between a thought and the value of the call that follows it."""
    if can.tool_calls != "yes":
        return None
    call = call_of(_CALL_ID, NAME, written(_VALUE, can.arguments))
    calling = with_thought({"role": "assistant", **without_content(can.no_content), "tool_calls": [call]}, field, _THOUGHT)
    result = {"role": "tool", "tool_call_id": _CALL_ID, "name": NAME, "content": "endresultmark"}
    return _after_thought(render, [USER, calling, result], TOOLS, _VALUE)


def _after_thought(
    render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, mark: str
) -> str | None:
    """What stands between the thought and this mark; None where the template shows not both in this order."""
    try:
        text = render([dict(message) for message in messages], tools)
    except BadRequest:
        return None
    _, thought, rest = text.partition(_THOUGHT)
    between, found, _ = rest.partition(mark)
    return between if thought and found else None
