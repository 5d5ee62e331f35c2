"""What models answer: calls, faults of the output, and why answers end."""

from typing import get_args

from gateway.events import Finished, Generated
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter, Names
from gateway.request import FailureKind, FinishReason

_FORMAT = (*PAIR, "format")


class Answers(Group):
    """Faults of the output by format: those of a model on every engine are the model's, those on one are the engine's."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._reason = Names(get_args(FinishReason))
        self._kind = Names(get_args(FailureKind))
        self._ended = Counter(
            "interlock_answers_total",
            "Answers that were given whole, by why they ended; length: cut by the token limit.",
            (*_FORMAT, "finish_reason"),
        )
        self._calls = Counter("interlock_tool_calls_total", "Whole tool calls in the models' answers.", _FORMAT)
        self._with_tools = Counter("interlock_requests_with_tools_total", "Requests that ended and offered tools.", _FORMAT)
        self._faults = Counter("interlock_parse_failures_total", "Faults in the models' output, by kind.", (*_FORMAT, "kind"))
        self._thoughts = Counter(
            "interlock_reasoning_budget_reached_total",
            "Thoughts that the gateway ended, as they had all the tokens allowed.",
            PAIR,
        )
        families = (self._ended, self._calls, self._with_tools, self._faults, self._thoughts)
        super().__init__("Answers", families, {Generated: self._generated, Finished: self._finished})

    def starts(self, served: Served, engine: str) -> Starts:
        """Each of the model's formats, with every reason and kind."""
        pair = (served.model, engine)
        places = [(*pair, name) for name in served.formats]
        yield self._calls, places
        yield self._with_tools, places
        yield self._thoughts, [pair]
        yield self._ended, [(*place, reason) for place in places for reason in get_args(FinishReason)]
        yield self._faults, [(*place, kind) for place in places for kind in get_args(FailureKind)]

    def _generated(self, pair: Pair, event: Generated) -> None:
        made, place = event.made, (*pair, self._known.format(event.format))
        for kind, count in made.failures.items():
            self._faults.add((*place, self._kind(kind)), count)
        for reason in event.finish_reasons:
            self._ended.add((*place, self._reason(reason)))
        self._calls.add(place, made.calls)
        self._thoughts.add(pair, made.ended_thoughts)

    def _finished(self, pair: Pair, event: Finished) -> None:
        if event.with_tools:
            self._with_tools.add((*pair, self._known.format(event.format)))


GROUP = Answers
