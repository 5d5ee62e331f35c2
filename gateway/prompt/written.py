"""What a chat template writes for calls, results and thoughts, cut out of rendered conversations for the reader of a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import BadRequest
from gateway.prompt.probe import THOUGHT_MARKS, Capabilities, shown_thinking, with_thought
from gateway.prompt.rig import NAME, TOOLS, USER, Json, Rig, call_of, without_content, written
from gateway.prompt.turn_end import answer_opener
from gateway.wire.text import common_start

_THOUGHT, _SAID, _RESULT = "the_thought", "the_answer", "the_result"
_VALUES = ("first_value", "second_value")
_IN_MARKERS = frozenset("|/_:-｜▁")  # beside letters and digits
_IDS = ("probecal1", "probecal2")  # nine letters and digits, since some templates ask for just that


@dataclass(frozen=True, slots=True)
class Written:
    """Empty where the template shows none. `result` follows one call; what the next turn begins with may stand at its end."""

    call: str = ""
    calls: str = ""
    result: str = ""


def whole_markers(text: str) -> str:
    """The text without a marker that is begun at its end: where two texts part, two markers may begin alike."""
    at = max(text.rfind("<"), text.rfind("["))
    begun = at >= 0 and all(each.isalnum() or each in _IN_MARKERS for each in text[at + 1 :])
    return text[:at] if begun else text


class Writing:
    """One template's way to write. `end` is the token that ends the model's turn, if one does."""

    def __init__(self, rig: Rig, can: Capabilities, end: str | None) -> None:
        self._rig = rig
        self._can = can
        self._end = end
        self._tools = TOOLS if can.tools == "yes" else ()
        opener = answer_opener(rig.drawn, can.opening)
        for begin, _ in THOUGHT_MARKS:  # a thought that the generation prompt opens is shown whole
            opener = opener.partition(begin)[0]
        self._opener = whole_markers(opener)

    def tool_loop(self) -> Written:
        """A call, two of them, and a result."""
        call, result = self._called(self._calling(1))
        calls, _ = self._called(self._calling(2)) if self._can.parallel_calls == "yes" else ("", "")
        return Written(call, calls, result)

    def thought(self) -> str:
        """An answer with a thought; a call with one where only calls show them."""
        if self._can.reasoning is None:
            return ""
        switches = shown_thinking(self._can.hides_thoughts)
        said = with_thought({"role": "assistant", "content": _SAID}, self._can.reasoning, _THOUGHT)
        answer = self._turn([USER, said], **switches)
        return answer if _THOUGHT in answer else self._called(self._thoughtful(), **switches)[0]

    def keeps_thoughts(self) -> bool:
        """Whether a running tool loop shows its thoughts, whatever the switches are left at."""
        return self._can.reasoning is not None and _THOUGHT in self._called(self._thoughtful())[0]

    def _thoughtful(self) -> Json:
        return with_thought(self._calling(1), self._can.reasoning or "", _THOUGHT)

    def _calling(self, count: int) -> Json:
        values = zip(_IDS[:count], _VALUES, strict=False)
        calls = [call_of(call_id, NAME, written(value, self._can.arguments)) for call_id, value in values]
        return {"role": "assistant", **without_content(self._can.no_content), "tool_calls": calls}

    def _called(self, calling: Json, **switches: Any) -> tuple[str, str]:
        """What is written for a message that calls, and for the results after it."""
        if self._can.tool_calls != "yes":
            return "", ""
        count = len(calling["tool_calls"])
        results = _results(count) if self._can.tool_results == "yes" else []
        turn = self._turn([USER, calling, *results], **switches)
        before, shown, _ = turn.partition(_RESULT)
        if not shown:
            return turn, ""
        called = before.rfind(_VALUES[count - 1]) + len(_VALUES[count - 1])
        alone = whole_markers(common_start(before, self._turn([USER, calling], **switches)))
        if len(alone) < called:  # a call without its result is written otherwise
            end = before.find(self._end, called) if self._end else -1
            alone = before if end < 0 or self._end is None else before[: end + len(self._end)]
        return alone, turn[len(alone) :]

    def _turn(self, messages: Sequence[Mapping[str, Any]], **switches: Any) -> str:
        """What follows the user's message, without its end and how the model's turn begins."""
        try:
            asked = self._rig.render([USER], tools=self._tools, **switches)
            text = self._rig.render(messages, tools=self._tools, **switches)
        except BadRequest:
            return ""
        asked, text = (each.rpartition(str(USER["content"]))[2] for each in (asked, text))
        _, opener, turn = text.partition(self._opener) if self._opener else ("", "", "")
        return turn if opener else text[len(whole_markers(common_start(asked, text))) :]


def _results(count: int) -> list[Json]:
    return [{"role": "tool", "tool_call_id": call_id, "name": NAME, "content": _RESULT} for call_id in _IDS[:count]]
