"""What a chat template writes for calls, results and thoughts, cut out of rendered conversations for the reader of a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import BadRequest
from gateway.prompt.probe import Capabilities, shown_thinking, with_thought
from gateway.prompt.rig import NAME, TOOLS, USER, Json, Rig, call_of, without_content, written
from gateway.prompt.turn_end import answer_opener
from gateway.wire.text import common_start

_THOUGHT, _SAID, _RESULT = "the_thought", "the_answer", "the_result"
_VALUES = ("first_value", "second_value")
_IDS = ("probecal1", "probecal2")  # nine letters and digits, since some templates ask for just that


@dataclass(frozen=True, slots=True)
class Written:
    """Empty where the template shows none. `result` follows one call; what the next turn begins with may stand at its end."""

    call: str = ""
    calls: str = ""
    result: str = ""


class Writing:
    """One template's way to write. `end` is the token that ends the model's turn, if one does."""

    def __init__(self, rig: Rig, can: Capabilities, end: str | None) -> None:
        self._rig = rig
        self._can = can
        self._end = end
        self._tools = TOOLS if can.tools == "yes" else ()
        self._opener = answer_opener(rig.drawn, can.opening)

    def tool_loop(self) -> Written:
        """A call, two of them, and a result."""
        call, result = self._called(1)
        calls, _ = self._called(2) if self._can.parallel_calls == "yes" else ("", "")
        return Written(call, calls, result)

    def thought(self) -> str:
        """An answer with a thought; a call with one where only calls show them."""
        if self._can.reasoning is None:
            return ""
        switches = shown_thinking(self._can.hides_thoughts)
        said = with_thought({"role": "assistant", "content": _SAID}, self._can.reasoning, _THOUGHT)
        answer = self._turn([USER, said], **switches)
        return answer if _THOUGHT in answer else self._before_result(self._thoughtful(), 1, **switches)

    def keeps_thoughts(self) -> bool:
        """Whether a running tool loop shows its thoughts, whatever the switches are left at."""
        return self._can.reasoning is not None and _THOUGHT in self._before_result(self._thoughtful(), 1)

    def _thoughtful(self) -> Json:
        return with_thought(self._calling(1), self._can.reasoning or "", _THOUGHT)

    def _calling(self, count: int) -> Json:
        values = zip(_IDS[:count], _VALUES, strict=False)
        calls = [call_of(call_id, NAME, written(value, self._can.arguments)) for call_id, value in values]
        return {"role": "assistant", **without_content(self._can.no_content), "tool_calls": calls}

    def _called(self, count: int) -> tuple[str, str]:
        """A turn that calls, and the results after it."""
        if self._can.tool_calls != "yes":
            return "", ""
        calling = self._calling(count)
        turn = self._turn([USER, calling, *_results(count)])
        before, shown, _ = turn.partition(_RESULT)
        at = before.rfind(_VALUES[count - 1]) + len(_VALUES[count - 1])
        if not shown:
            return turn, ""
        alone = common_start(before, self._turn([USER, calling]))
        if len(alone) >= at:
            return alone, turn[len(alone) :]
        end = before.find(self._end, at) if self._end else -1
        split = len(before) if end < 0 or self._end is None else end + len(self._end)
        return turn[:split], turn[split:]

    def _before_result(self, calling: Json, count: int, **switches: Any) -> str:
        return self._turn([USER, calling, *_results(count)], **switches).partition(_RESULT)[0]

    def _turn(self, messages: Sequence[Mapping[str, Any]], **switches: Any) -> str:
        """What follows the user's message, without its end and how the model's turn begins."""
        try:
            asked = self._rig.render([USER], tools=self._tools, **switches)
            text = self._rig.render(messages, tools=self._tools, **switches)
        except BadRequest:
            return ""
        asked, text = (each.rpartition(str(USER["content"]))[2] for each in (asked, text))
        return text[len(common_start(asked, text)) :].removeprefix(self._opener)


def _results(count: int) -> list[Json]:
    return [{"role": "tool", "tool_call_id": call_id, "name": NAME, "content": _RESULT} for call_id in _IDS[:count]]
