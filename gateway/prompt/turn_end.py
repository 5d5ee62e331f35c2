"""What a chat template writes between turns, found by rendering marked conversations: which tokens part them, and which one ends
the model's.

A model's files do not always name the token that ends its turn among the end tokens, and then its answers run on to the token
limit. The template shows it: it is what stands right after an earlier answer. Invariant: nothing is guessed. Where the template
refuses a conversation, or writes no control token there, or writes the same one within a turn too, as Harmony does after a
thought, there is no turn end.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.errors import BadRequest
from gateway.prompt.probe import Capabilities
from gateway.prompt.rig import call_of, without_content, written

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Messages and tools to the text of a template, without a generation prompt. Raises BadRequest."""

_ASKED, _SAID, _NEXT = "turnaskedmark", "turnsaidmark", "turnnextmark"
_THOUGHT, _NAME, _FIRST, _SECOND, _RESULT = (
    "turnthoughtmark",
    "turn_function",
    "turnfirstmark",
    "turnsecondmark",
    "turnresultmark",
)
_IDS = ("turncall1", "turncall2")  # nine alphanumerics, since some templates ask for just that
_TURNS = ({"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}, {"role": "user", "content": _NEXT})
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "A probe."}}},
    },
}


def turn_tokens(render: Render, added: Collection[str]) -> frozenset[str]:
    """The added tokens that part turns: all between an answer and the next question, and the one right after a question."""
    text = _rendered(render, _TURNS)
    between = _between(text, _SAID, _NEXT) if text is not None else None
    if text is None or between is None:
        return frozenset()
    token = _pattern(added)
    opener = token.match(text.partition(_ASKED)[2].lstrip())
    return frozenset([*(found[0] for found in token.finditer(between)), *([opener[0]] if opener else [])])


def turn_end(render: Render, can: Capabilities, controls: Collection[str]) -> str | None:
    """The control token that ends the model's turn, and stands nowhere within one."""
    text = _rendered(render, _TURNS)
    after = _between(text, _SAID, _NEXT) if text is not None else None
    found = _pattern(controls).match(after.lstrip()) if after is not None and controls else None
    if found is None or any(found[0] in inside for inside in _insides(render, can)):
        return None
    return found[0]


def answer_opener(render: Render, opening: str) -> str:
    """How a turn of the model begins in the history: as much of the generation prompt's `opening` as stands there too."""
    text = _rendered(render, _TURNS)
    before = _between(text, _ASKED, _SAID) if text is not None else None
    sizes = range(len(opening), 0, -1) if before is not None else ()
    return next((opening[:size] for size in sizes if before is not None and opening[:size] in before), "")


def _insides(render: Render, can: Capabilities) -> Iterator[str]:
    """What the template writes within a turn: from a thought to the answer, from either to the last of the calls."""
    user, said, following = _TURNS
    thought = {can.reasoning: _THOUGHT} if can.reasoning and can.reasoning != "content" else {}
    results = [{"role": "tool", "tool_call_id": call, "name": _NAME, "content": _RESULT} for call in _IDS]
    for values in ([_FIRST, _SECOND], [_FIRST]):
        given = zip(_IDS, values, strict=False)
        calls = {"tool_calls": [call_of(call_id, _NAME, written(value, can.arguments)) for call_id, value in given]}
        for content in ({"content": _SAID}, without_content(can.no_content)):
            turn = {"role": "assistant", **content, **thought, **calls}
            loop = [user, turn, *results[: len(values)]]
            for messages in (loop, [*loop, said, following]):
                text = _rendered(render, messages, [_TOOL])
                yield from _inside(text, values)
    for messages in ([user, said | thought], [user, said | thought, following]):
        yield from _inside(_rendered(render, messages), [_SAID])


def _inside(text: str | None, ends: Sequence[str]) -> Iterator[str]:
    """From the turn's first mark, be it thought, text or call, to its last."""
    if text is None:
        return
    turn = text.partition(_ASKED)[2]
    begins = [at for mark in (_THOUGHT, _SAID, *ends) if (at := turn.find(mark)) >= 0]
    last = max(turn.find(mark) for mark in ends)
    if begins and last >= 0:
        yield turn[min(begins) : last]


def _rendered(
    render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> str | None:
    try:
        return render([dict(message) for message in messages], tools)
    except BadRequest:
        return None


def _between(text: str, before: str, after: str) -> str | None:
    """What stands between two marks, if both are there."""
    _, found, rest = text.partition(before)
    between, reached, _ = rest.partition(after)
    return between if found and reached else None


def _pattern(tokens: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
