"""What a chat template does with each kind of message, found by rendering marked conversations once at start.

Most templates that lack something do not refuse it: they drop it without a word. So nothing is believed of a template but what
its text shows: a message counts as given when its mark is in the rendered text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.template import ChatTemplate

Support = Literal["yes", "no", "raises"]
ArgumentForm = Literal["object", "text"]
NoContentForm = Literal["empty", "absent", "null"]
Json = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_SWITCHES: tuple[Json, ...] = ({}, *({name: value} for name in ("enable_thinking", "thinking") for value in (True, False)))
_ARGUMENT_FORMS: tuple[ArgumentForm, ...] = ("object", "text")
_NO_CONTENT_FORMS: tuple[NoContentForm, ...] = ("empty", "absent", "null")
_IDS = ("callprobe", "callprob2")  # nine alphanumerics, since some templates ask for just that
_NAME = "probe_function"
_USER: Mapping[str, Any] = {"role": "user", "content": "probeusermark"}
_SAID: Mapping[str, Any] = {"role": "assistant", "content": "probeanswermark"}
_TOOLS: Sequence[Json] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "probedescriptionmark",
            "parameters": {
                "type": "object",
                "properties": {"probe_key": {"type": "string", "description": "probe"}},
                "required": ["probe_key"],
            },
        },
    }
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`yes`: it is in the text; `no`: it is dropped without a word; `raises`: the template refuses it. A developer message
    counts as `no` too where the template would write down any role, known to the model or not.

    `later_system` and `later_developer` are such messages after the first. `arguments` is the form in which the template takes a
    call's arguments, `broken_arguments` what it takes for text that is no JSON object; `no_content` how a call without text is
    written: as "", without the key, or as null. `reasoning` is the field from which thoughts are read, None where none is.
    `opening` is how the assistant's turn begins in a generation prompt, empty where the template writes none.
    """

    system: Support
    later_system: Support
    developer: Support
    later_developer: Support
    consecutive_users: Support
    tools: Support
    tool_calls: Support
    parallel_calls: Support
    tool_results: Support
    arguments: ArgumentForm
    broken_arguments: Literal["text", "wrapped"]
    no_content: NoContentForm
    reasoning: str | None
    opening: str


def probe(template: ChatTemplate, specials: Mapping[str, str]) -> Capabilities:
    """Raises ModelFileError for a template that cannot even render one user message."""
    rig = _Rig(template, specials)
    call = _call_form(rig)
    result: Json = {"role": "tool", "tool_call_id": _IDS[0], "name": _NAME, "content": "proberesultmark"}
    later: Json = {"content": "probelatermark"}
    return Capabilities(
        system=rig.shows([{"role": "system", "content": "probefirstmark"}, _USER], "probefirstmark"),
        later_system=rig.shows([_USER, _SAID, later | {"role": "system"}, _USER], "probelatermark"),
        developer=_own_role(rig, "developer", [{"content": "probefirstmark"}, _USER], "probefirstmark"),
        later_developer=_own_role(rig, "developer", [_USER, _SAID, later, _USER], "probelatermark"),
        consecutive_users=rig.shows([_USER, later | {"role": "user"}], "probelatermark", "probeusermark"),
        tools=rig.shows([_USER], _NAME, tools=True),
        tool_calls=call.support,
        parallel_calls=rig.shows(
            [_USER, call.message("probevaluemark", "probesecondmark"), result, result | {"tool_call_id": _IDS[1]}],
            "probevaluemark",
            "probesecondmark",
            tools=True,
        ),
        tool_results=rig.shows([_USER, call.message("probevaluemark"), result], "proberesultmark", tools=True),
        arguments=call.arguments,
        broken_arguments=_broken_form(rig, call),
        no_content=call.no_content,
        reasoning=_reasoning_field(rig, call, result),
        opening=_opening(rig),
    )


def _own_role(rig: "_Rig", role: str, messages: Sequence[Mapping[str, Any]], mark: str) -> Support:
    """As `shows`, for the message without a role. A template that writes any role's name down has not learnt this one."""
    named, unknown = ([{"role": name, **message} for message in messages] for name in (role, "probe_role"))
    found = rig.shows(named, mark)
    return "no" if found == "yes" and rig.shows(unknown, mark) == "yes" else found


class _Rig:
    """Renders probes. A template that cannot do without tools is given them always."""

    def __init__(self, template: ChatTemplate, specials: Mapping[str, str]) -> None:
        self._template = template
        self._specials = specials
        self._always = False
        if self.shows([_USER], "probeusermark") != "yes":
            reason = self._reason()
            self._always = True
            if self.shows([_USER], "probeusermark") != "yes":
                raise ModelFileError(f"The chat template does not show one user message to the model: {reason}")

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: bool = False, prompt: bool = False, **switches: Any) -> str:
        given: Json = {"tools": [*_TOOLS] if tools or self._always else None, "documents": None, "add_generation_prompt": prompt}
        return self._template.render({**self._specials, **switches, "messages": [dict(m) for m in messages], **given})

    def _reason(self) -> str:
        try:
            self.render([_USER])
        except BadRequest as error:
            return error.message
        return "its text is left out"

    def shows(self, messages: Sequence[Mapping[str, Any]], *marks: str, tools: bool = False) -> Support:
        try:
            text = self.render(messages, tools=tools)
        except BadRequest:
            return "raises"
        return "yes" if all(mark in text for mark in marks) else "no"


@dataclass(frozen=True, slots=True)
class _CallForm:
    """How an assistant's call is put to this template, and whether it shows it then."""

    support: Support
    arguments: ArgumentForm
    no_content: NoContentForm

    def message(self, *values: str) -> Json:
        return _call_message(self.no_content, [_written(value, self.arguments) for value in values])


def _written(value: str, form: ArgumentForm) -> object:
    return {"probe_key": value} if form == "object" else f'{{"probe_key": "{value}"}}'


def _call_message(no_content: NoContentForm, arguments: Sequence[object]) -> Json:
    content: Json = {} if no_content == "absent" else {"content": "" if no_content == "empty" else None}
    calls = [
        {"id": _IDS[number], "type": "function", "function": {"name": _NAME, "arguments": value}}
        for number, value in enumerate(arguments)
    ]
    return {"role": "assistant", **content, "tool_calls": calls}


def _call_form(rig: _Rig) -> _CallForm:
    """The first form whose call is in the text, name and arguments; objects are what most models were trained on."""
    forms = [_CallForm(_call_support(rig, *form), *form) for form in product(_ARGUMENT_FORMS, _NO_CONTENT_FORMS)]
    return next((form for form in forms if form.support == "yes"), forms[0])


def _call_support(rig: _Rig, arguments: ArgumentForm, no_content: NoContentForm) -> Support:
    message = _call_message(no_content, [_written("probevaluemark", arguments)])
    found = [rig.shows([_USER, message], "probevaluemark", _NAME, tools=tools) for tools in (False, True)]
    return "yes" if "yes" in found else found[1]


def _broken_form(rig: _Rig, call: _CallForm) -> Literal["text", "wrapped"]:
    message = _call_message(call.no_content, ['{"probebroken": mark'])
    return "text" if rig.shows([_USER, message], "probebroken", tools=True) == "yes" else "wrapped"


def _reasoning_field(rig: _Rig, call: _CallForm, result: Json) -> str | None:
    """Most templates show thoughts only within a running tool loop; some only for a plain answer."""
    for field in REASONING_FIELDS:
        thought = {field: "probethoughtmark"}
        loop = [_USER, call.message("probevaluemark") | thought, result]
        plain = [_USER, {**_SAID, **thought}]
        if "yes" in (rig.shows(loop, "probethoughtmark", tools=True), rig.shows(plain, "probethoughtmark")):
            return field
    return None


def _opening(rig: _Rig) -> str:
    """What all generation prompts of the template begin with, whatever its thinking switches say."""
    prompts: list[str] = []
    for switches in _SWITCHES:
        try:
            ended, begun = rig.render([_USER], **switches), rig.render([_USER], prompt=True, **switches)
        except BadRequest:
            continue
        prompts.append(begun[len(_common(ended, begun)) :])
    return _common(*prompts)


def _common(*texts: str) -> str:
    """What all of them begin with."""
    first, last = min(texts), max(texts)
    return next((first[:at] for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), first)
