"""The proof, for each prompt, that what the client said is in it.

Templates drop what they do not expect without a word, and not all of that shows in probes. So a prompt is believed only for
what its text holds: a few windows of each text, each call's name and arguments, and the tools' names. Invariant: what a template
leaves out whole is refused by the client's field, what it leaves out in part is noted; thoughts may be left out, and text beside
calls with a note. Takes time linear in the prompt.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from gateway.errors import BadRequest
from gateway.prompt.conversation import Turn
from gateway.prompt.normalize import arguments_object
from gateway.prompt.probe import Capabilities
from gateway.wire import jsonio

Kind = Literal["tools", "system", "message", "beside", "name", "arguments"]

_WINDOW = 64  # characters
_WHOLE = 3 * _WINDOW  # texts up to this are looked for whole
_LEAST_RUN = 8  # fewer plain characters than these may stand anywhere by chance
_NEAR = 1 << 16  # characters within which the next message stands, as a rule
_MAX_MISSES = 64  # searches of all of the text for nothing
_ESCAPED = re.compile(r"[^ !#-\[\]-~]")  # what JSON may escape
_WIDE = re.compile(r"[^\x00-\x7f]+")
_UNIT = re.compile("[0-9a-f]{4}")
_RUNS = re.compile(r"[^\W_]+(?: [^\W_]+)*")
_COMMANDS = re.compile(r"(?<!\S)/\w+")  # words to the template in a system message, such as /no_think
_THING: Mapping[Kind, str] = {"tools": "the tools", "name": "this call", "arguments": "this call's arguments"}


@dataclass(frozen=True, slots=True)
class Claim:
    """Words of one of the client's fields, `place`, of which some at least must be in the prompt. `message` is the index that
    claims of one message share; `beside` is text beside calls."""

    place: str
    kind: Kind
    message: int
    windows: tuple[str, ...]


def claims(conversation: Iterable[Turn], tool_names: Sequence[str], can: Capabilities) -> tuple[Claim, ...]:
    """What the prompt of this conversation must show. Says nothing of text that is blank, or known to be left out."""
    made = [Claim("tools", "tools", -1, tuple(tool_names))]
    made += (claim for turn in conversation for claim in _of_turn(turn, can))
    return tuple(claim for claim in made if claim.windows)


def proved(text: str, claimed: Iterable[Claim]) -> tuple[str, ...]:
    """Notes on what the prompt shows in part. Raises BadRequest for what it does not show."""
    search, start, notes = _Search(text), 0, list[str]()
    for _, group in groupby(claimed, key=lambda claim: claim.message):
        reached: list[int] = []
        for claim in group:
            if search.misses > _MAX_MISSES:
                return (*notes, f"{claim.place} and what follows it was not looked for in the prompt")
            ends = search.ends(claim, start)
            if len(ends) < len(claim.windows):
                notes.append(_told(claim, bool(ends) or search.altered(claim.windows)))
            elif claim.kind not in {"tools", "system"}:  # those may stand out of order
                reached.append(max(ends))
        start = min(reached, default=start)
    return tuple(notes)


def _told(claim: Claim, partly: bool) -> str:
    if partly:
        return f"{claim.place}: partly left out, or changed, by the chat template"
    if claim.kind == "beside":
        return f"{claim.place}: text beside calls left out by the chat template"
    thing = _THING.get(claim.kind, "this message")
    raise BadRequest(f"The model's chat template leaves {thing} out of the prompt here.", param=claim.place)


def _of_turn(turn: Turn, can: Capabilities) -> Iterator[Claim]:
    place = f"messages[{turn.index}]"
    text = turn.text or ""
    kind: Kind = "message"
    if turn.role == "assistant":
        for end in can.cuts_at:
            text = text.rpartition(end)[2]
        kind = "beside" if turn.calls else kind
    elif turn.role in {"system", "developer"}:
        kind, text = "system", max(_COMMANDS.split(text), key=len)
    if kind != "beside" or can.called_text != "nowhere":
        yield Claim(place, kind, turn.index, _windows(text))
    for number, call in enumerate(turn.calls):
        given = arguments_object(call.arguments)
        said = call.arguments if given is None else given
        words = tuple(window for value in _values(said) for window in _windows(value))
        yield Claim(f"{place}.tool_calls[{number}]", "name", turn.index, (call.name,))
        yield Claim(f"{place}.tool_calls[{number}]", "arguments", turn.index, words)


def _values(value: Any) -> Iterator[str]:
    """Every string of a JSON value, without keys, in their order."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            left += reversed(value.values() if isinstance(value, dict) else value)


def _windows(text: str) -> tuple[str, ...]:
    """The text without blanks at its ends, if it is short; its first, middle and last characters, if it is long."""
    text = text.strip()
    if len(text) <= _WHOLE:
        return (text,) if text else ()
    middle = (len(text) - _WINDOW) // 2
    cut = (text[:_WINDOW], text[middle : middle + _WINDOW], text[-_WINDOW:])
    return tuple(window for window in map(str.strip, cut) if window)


class _Search:
    """Looks for windows in a text, as they are and as templates escape them; `misses` counts the searches that cost the most."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._usual: dict[Kind, Callable[[str], str]] = {}  # the form in which a kind was found last
        self.misses = 0

    def ends(self, claim: Claim, start: int) -> list[int]:
        """Where those of a claim's windows that the text holds end: from `start` on, or else anywhere. A call's name is not
        looked for in what stands before: it is among the tools, too."""
        ends: list[int] = []
        begin = start
        for window in claim.windows:
            end = self._near(window, claim.kind, begin, sure=bool(ends)) or self._far(window, start)
            if end is None and claim.kind != "name" and start:
                end = self._far(window, 0)
            if end is not None:
                ends.append(end)
                begin = end
        return ends

    def _near(self, window: str, kind: Kind, begin: int, *, sure: bool) -> int | None:
        """The nearest of its forms, not far from `begin`: one that is found farther on may be another message's. It is `sure`
        which form it has where that of a window before it is known."""
        found = self._usual.get(kind, _as_it_is) if _ESCAPED.search(window) else _as_it_is
        form = found(window)
        nearest = self._text.find(form, begin, begin + _NEAR)
        if (nearest < 0 or not sure) and _ESCAPED.search(window):
            for other in _FORMS if nearest < 0 else _FORMS[:2]:
                written = other(window)
                at = self._text.find(written, begin, begin + _NEAR if nearest < 0 else nearest + len(written) - 1)
                if at >= 0:
                    found, form, nearest = other, written, at
            self._usual[kind] = found
        return nearest + len(form) if nearest >= 0 else None

    def _far(self, window: str, begin: int) -> int | None:
        for form in dict.fromkeys(write(window) for write in _FORMS):
            at = self._text.find(form, begin)
            if at >= 0:
                return at + len(form)
        self.misses += 1
        return None

    def altered(self, windows: Iterable[str]) -> bool:
        """Whether the text holds the better half of a window, one run of plain words after the other."""
        return any(self._holds_most(window) for window in windows)

    def _holds_most(self, window: str) -> bool:
        held = begin = 0
        for run in _RUNS.findall(window):
            if run != window and (at := self._text.find(run, begin)) >= 0:
                held += len(run)
                begin = at + len(run)
        return held >= max(_LEAST_RUN, len(window) // 2)


def _as_it_is(text: str) -> str:
    return text


def _in_json(text: str) -> str:
    return jsonio.dumps(text)[1:-1]


def _twice_in_json(text: str) -> str:
    return _in_json(_in_json(text))


def _in_ascii_json(text: str) -> str:
    return _WIDE.sub(lambda found: _UNIT.sub(r"\\u\g<0>", found[0].encode("utf-16-be").hex()), _in_json(text))


def _in_python(text: str) -> str:
    return repr(text)[1:-1]


def _in_python_with_both_quotes(text: str) -> str:
    return repr(text + "\"'")[1:-4]


_FORMS: Sequence[Callable[[str], str]] = (
    _as_it_is,
    _in_json,
    _twice_in_json,
    _in_ascii_json,
    _in_python,
    _in_python_with_both_quotes,
)
