"""What a model's template cannot do, in plain words: a sentence each, with what the gateway does about it."""

from collections.abc import Iterator, Mapping

from gateway.prompt.probe import Capabilities
from gateway.prompt.rig import Support

_VERBS: Mapping[Support, str] = {"drops": "drops", "raises": "refuses", "no": "does not know", "yes": "shows"}


def cannot(can: Capabilities) -> tuple[str, ...]:
    """The sentences, none for a template that can do everything."""
    return (*_roles(can), *_tools(can), *_thoughts(can))


def _roles(can: Capabilities) -> Iterator[str]:
    if can.system != "yes":
        place = "last" if can.system_beside == "last" else "first"
        yield f"{_does(can.system)} system messages: they are given at the head of the {place} user message."
    if can.later_system != "yes":
        yield f"{_does(can.later_system)} a system message later than the first: a request with one is refused."
    if can.developer != "yes":
        yield f"{_does(can.developer)} developer messages: they are given as system messages."
    elif can.later_developer != "yes":
        yield f"{_does(can.later_developer)} later developer messages: they are given as system messages."
    if can.consecutive_users != "yes":
        yield f"{_does(can.consecutive_users)} the second of two user messages in a row: they are joined to one."
    if can.consecutive_assistants != "yes":
        yield f"{_does(can.consecutive_assistants)} the second of two answers in a row: they are joined to one."
    if can.empty_answer != "yes":
        yield f"{_does(can.empty_answer)} an answer without text: it is left out."
    if can.first_answer != "yes":
        yield f"{_does(can.first_answer)} an answer before the first user message: a request with one is refused."
    elif can.first_beside_tools != "yes":
        yield f"{_does(can.first_beside_tools)} an answer before the first user message where there are tools: it is refused."


def _tools(can: Capabilities) -> Iterator[str]:
    if can.tools != "yes":
        how = "refuses tools" if can.tools == "raises" else "states no tools"
        yield f"The template {how}: set `tools: constrained`."
    if can.tool_calls != "yes":
        yield f"{_does(can.tool_calls)} tool calls: with `tools: native` a request with earlier calls is refused."
        return
    if can.tool_results != "yes":
        yield f"{_does(can.tool_results)} the results of calls: with `tools: native` a request with one is refused."
    if can.parallel_calls != "yes":
        yield f"{_does(can.parallel_calls)} a second call in one message: an answer has one call only."
    if can.open_calls != "yes":
        yield f"{_does(can.open_calls)} a call without its result before a user message: a request with one is refused."
    if can.called_text != "beside":
        instead = {"thought": "it is given as a thought", "before": "it is given as a message before them"}
        yield f"The template shows no text beside calls: {instead.get(can.called_text, 'it is left out')}."
    if can.broken_arguments == "wrapped":
        yield "The template takes objects alone for a call's arguments: text that is none is given in one, as `raw_arguments`."
    if can.call_ids == "nine":
        yield "The template takes call ids of nine letters or digits alone: others are mapped to such."


def _thoughts(can: Capabilities) -> Iterator[str]:
    if can.reasoning is None:
        yield "The template shows no earlier thoughts: they are left out."
    elif None in can.hides_thoughts:
        yield "The template shows earlier thoughts only where thinking is switched on: else they are left out."
    elif can.old_thoughts != "yes":
        yield "The template shows no thoughts from before the last user message: they are left out."
    for end in sorted(can.cuts_at):
        yield f"The template takes what stands before {end} in an answer for a thought: it may be left out."


def _does(support: Support) -> str:
    return f"The template {_VERBS[support]}"
