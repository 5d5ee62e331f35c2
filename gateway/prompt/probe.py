"""What a chat template does with each kind of message, found by rendering marked conversations once at start.

Most templates that lack something do not refuse it: they drop it without a word. So nothing is believed of a template but what
its text shows: a message counts as given when its mark is in the rendered text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.rig import (
    NAME,
    TOOLS,
    USER,
    ArgumentForm,
    Json,
    NoContentForm,
    Rig,
    Support,
    call_of,
    without_content,
    written,
)
from gateway.prompt.template import ChatTemplate
from gateway.wire.text import common_start

CalledText = Literal["beside", "thought", "before", "nowhere"]

THOUGHT_PARTS = "content"  # the thought is a part of the content
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning", THOUGHT_PARTS)
THINKING_SWITCHES = ("enable_thinking", "thinking")
THOUGHT_MARKS = (
    *(("<think>", "</think>"), ("<|channel>", "<channel|>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")),
    *(("<|START_THINKING|>", "<|END_THINKING|>"), ("<|inner_prefix|>", "<|inner_suffix|>")),
)
_SWITCHES: tuple[Json, ...] = ({}, *({name: value} for name in THINKING_SWITCHES for value in (True, False)))
_ARGUMENT_FORMS: tuple[ArgumentForm, ...] = ("object", "text")
_NO_CONTENT_FORMS: tuple[NoContentForm, ...] = ("empty", "absent", "null")
_CALLED_TEXT_FORMS: tuple[CalledText, ...] = ("beside", "thought", "before")
_IDS = ("callprobe", "callprob2")  # nine alphanumerics, since some templates ask for just that
_ORDINARY_ID = "call_Probe0123456789abcdefg"
_SAID: Mapping[str, Any] = {"role": "assistant", "content": "probeanswermark"}
_MORE: Mapping[str, Any] = {"role": "user", "content": "probemoremark"}
_RESULT: Mapping[str, Any] = {"role": "tool", "tool_call_id": _IDS[0], "name": NAME, "content": "proberesultmark"}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`yes`: it is in the text; `drops`: it is left out without a word; `raises`: the template refuses it; `no`: it is in the
    text, but not as what it is, as a developer message is where the template would write down any role, known to the model or
    not. What the template shows in one place and not in another (after an answer, in a tool loop) counts as not shown.

    `later_system` and `later_developer` are such messages after the first; `empty_answer` is an answer without text,
    `first_answer` one before any user message, `first_beside_tools` one, or a call, where there are tools; `open_calls` are calls
    that a user message follows, not their results. `system_beside` says beside which user message the template shows a system
    message, where it shows one.
    `arguments` is the form in which the template takes a call's arguments, `broken_arguments` what it takes for text that is no
    JSON object; `no_content` how a call without text is written: as "", without the key, or as null. `called_text` says where the
    text of a message that calls is shown: in it, as a part of its thought, in a message before it.

    `reasoning` is the field from which thoughts are read, THOUGHT_PARTS for parts of the content, None where none is.
    `hides_thoughts` holds the thinking switch's values (None: not given) with which it shows none at all; `old_thoughts` are
    those before the last user message. `cuts_at` are the ends of a thought before which an answer's text is cut.

    `call_ids` is `nine` where ids must have nine letters or digits. `tool_keys` are the keys that a tool must have, beside its
    name and parameters; `no_tools` is what `tools` must be where there are none. `opening` is how the assistant's turn begins in
    a generation prompt, empty where the template writes none. `refusals` are the template's words, by the name of what it
    refuses.
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
    consecutive_assistants: Support = "yes"
    empty_answer: Support = "yes"
    first_answer: Support = "yes"
    first_beside_tools: Support = "yes"
    open_calls: Support = "yes"
    called_text: CalledText = "beside"
    hides_thoughts: frozenset[bool | None] = frozenset()
    cuts_at: frozenset[str] = frozenset()
    call_ids: Literal["any", "nine"] = "any"
    tool_keys: frozenset[str] = frozenset()
    no_tools: Literal["null", "empty"] = "null"
    system_beside: Literal["first", "last"] = "first"
    old_thoughts: Support = "yes"
    refusals: Mapping[str, str] = field(default_factory=dict)


def probe(template: ChatTemplate, specials: Mapping[str, str]) -> Capabilities:
    """Raises ModelFileError for a template that cannot even render one user message, or begin the answer to it."""
    rig = Rig(template, specials)
    call = _call_form(rig)
    loop = [USER, call.message("probevaluemark"), _RESULT]
    results = rig.shows_all([loop, [*loop, _SAID, _MORE]], "proberesultmark", tools=TOOLS)
    looped = [loop, [*loop, _SAID, _MORE]] if call.support == results == "yes" else []
    parallel = [USER, call.message("probevaluemark", "probesecondmark"), _RESULT, {**_RESULT, "tool_call_id": _IDS[1]}]
    reasoning, hides = _reasoning(rig, call)
    supports: dict[str, Support] = {
        **_roles(rig, looped),
        "tools": rig.shows_all([[USER], *looped], NAME, "probedescriptionmark", "probe_key", tools=TOOLS),
        "tool_calls": call.support,
        "tool_results": results,
        "first_answer": rig.shows([_SAID, _MORE], "probeanswermark", "probemoremark"),
        "first_beside_tools": _first_beside_tools(rig, call if looped else None),
        "open_calls": rig.shows([*loop[:2], _MORE], "probevaluemark", "probemoremark", tools=TOOLS),
        "parallel_calls": rig.shows(parallel, "probevaluemark", "probesecondmark", tools=TOOLS),
    }
    tried = {
        "tool_calls": loop[:2],
        "tool_results": loop,
        "parallel_calls": parallel,
        "first_answer": [_SAID, _MORE],
        "open_calls": [*loop[:2], _MORE],
    }
    return Capabilities(
        **supports,
        arguments=call.arguments,
        broken_arguments=_broken_form(rig, call),
        no_content=call.no_content,
        called_text=_called_text(rig, call, reasoning, hides),
        reasoning=reasoning,
        hides_thoughts=hides,
        cuts_at=_cuts_at(rig),
        call_ids=_call_ids(rig, loop),
        tool_keys=_tool_keys(rig),
        no_tools=rig.no_tools,
        system_beside=_system_beside(rig),
        old_thoughts=_old_thoughts(rig, reasoning, hides),
        opening=_opening(rig),
        refusals={name: rig.reason(messages) for name, messages in tried.items() if supports[name] == "raises"},
    )


def _cuts_at(rig: Rig) -> frozenset[str]:
    """The ends by which it does so: where the answer holds the end alone, the beginning right before it, or the thought between
    them."""

    def cuts(begin: str, end: str) -> bool:
        texts = (f"probebefore{end}probeafter", f"probebefore{begin}{end}probeafter", f"{begin}probebefore{end}probeafter")
        return rig.shows_all([[USER, _said(text), _MORE] for text in texts], "probebefore") == "drops"

    return frozenset(end for begin, end in THOUGHT_MARKS if cuts(begin, end))


def _said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def _roles(rig: Rig, looped: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Support]:
    first: Json = {"role": "system", "content": "probefirstmark"}
    later: Json = {"content": "probelatermark"}
    system = rig.shows_all([[first, USER], [first, USER, _SAID, _MORE]], "probefirstmark")
    if system == "yes" and looped:
        system = rig.shows_all([[first, *messages] for messages in looped], "probefirstmark", tools=TOOLS)
    before, marks = ([first], ["probefirstmark"]) if system == "yes" else ([], [])
    return {
        "system": system,
        "later_system": rig.shows([*before, USER, _SAID, later | {"role": "system"}, _MORE], "probelatermark", *marks),
        "developer": _own_role(rig, "developer", [{"content": "probefirstmark"}, USER], "probefirstmark"),
        "later_developer": _own_role(rig, "developer", [USER, _SAID, later, _MORE], "probelatermark"),
        "consecutive_users": rig.shows([USER, _MORE], "probemoremark", "probeusermark"),
        "consecutive_assistants": rig.shows([USER, _SAID, _said("probelatermark"), _MORE], "probelatermark", "probeanswermark"),
        "empty_answer": rig.shows([USER, _said(""), _MORE], "probemoremark", "probeusermark"),
    }


def _first_beside_tools(rig: Rig, call: "_CallForm | None") -> Support:
    """Some templates give the tools with the first message, as if that were a user's."""
    answered = [_SAID, _MORE]
    found = rig.shows(answered, "probeanswermark", "probemoremark", tools=TOOLS)
    if found == "yes" and rig.alike(answered, [{**_SAID, "role": "user"}, _MORE], tools=TOOLS):
        return "no"
    if found == "yes" and call is not None:
        return rig.shows([call.message("probevaluemark"), _RESULT, _MORE], "probevaluemark", "proberesultmark", tools=TOOLS)
    return found


def _system_beside(rig: Rig) -> Literal["first", "last"]:
    conversation = [{"role": "system", "content": "probefirstmark"}, USER, _SAID, _MORE]
    if rig.shows(conversation, "probefirstmark", "probeanswermark") != "yes":
        return "first"
    text = rig.render(conversation)
    return "last" if text.index("probefirstmark") > text.index("probeanswermark") else "first"


def _own_role(rig: Rig, role: str, messages: Sequence[Mapping[str, Any]], mark: str) -> Support:
    """As `shows`, for the message without a role. A template that writes any role's name down has not learnt this one."""
    named, unknown = ([{"role": name, **message} for message in messages] for name in (role, "probe_role"))
    found = rig.shows(named, mark)
    return "no" if found == "yes" and rig.shows(unknown, mark) == "yes" else found


@dataclass(frozen=True, slots=True)
class _CallForm:
    """How an assistant's call is put to this template, and whether it shows it then."""

    support: Support
    arguments: ArgumentForm
    no_content: NoContentForm

    def message(self, *values: str) -> Json:
        return _call_message(self.no_content, [written(value, self.arguments) for value in values])


def _call_message(no_content: NoContentForm, arguments: Sequence[object]) -> Json:
    calls = [call_of(_IDS[number], NAME, value) for number, value in enumerate(arguments)]
    return {"role": "assistant", **without_content(no_content), "tool_calls": calls}


def _call_form(rig: Rig) -> _CallForm:
    """The first form whose call is in the text, name and arguments; objects are what most models were trained on."""
    forms = [_CallForm(_call_support(rig, *form), *form) for form in product(_ARGUMENT_FORMS, _NO_CONTENT_FORMS)]
    return next((form for form in forms if form.support == "yes"), forms[0])


def _call_support(rig: Rig, arguments: ArgumentForm, no_content: NoContentForm) -> Support:
    message = _call_message(no_content, [written("probevaluemark", arguments)])
    found = [rig.shows([USER, message], "probevaluemark", NAME, tools=tools) for tools in ((), TOOLS)]
    return "yes" if "yes" in found else found[1]


def _broken_form(rig: Rig, call: _CallForm) -> Literal["text", "wrapped"]:
    message = _call_message(call.no_content, ['{"probebroken": mark'])
    return "text" if rig.shows([USER, message], "probebroken", tools=TOOLS) == "yes" else "wrapped"


def with_thought(message: Mapping[str, Any], name: str, thought: str) -> Json:
    """The message with a thought in the field of this name."""
    if name != THOUGHT_PARTS:
        return {**message, name: thought}
    text = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    return {**message, "content": [{"type": "thinking", "thinking": thought}, *text]}


def _reasoning(rig: Rig, call: _CallForm) -> tuple[str | None, frozenset[bool | None]]:
    """The field, and the values of the thinking switch with which nothing of it is shown.

    Most templates show thoughts only within a running tool loop; some only for a plain answer.
    """
    switches: dict[bool | None, Json] = {None: {}} | {value: dict.fromkeys(THINKING_SWITCHES, value) for value in (True, False)}
    for name in REASONING_FIELDS:
        loop = [USER, with_thought(call.message("probevaluemark"), name, "probethoughtmark"), _RESULT]
        plain = [USER, with_thought(_SAID, name, "probethoughtmark")]
        shown = {
            value
            for value, given in switches.items()
            if rig.shows(loop, "probethoughtmark", "probevaluemark", tools=TOOLS, switches=given) == "yes"
            or rig.shows(plain, "probethoughtmark", "probeanswermark", switches=given) == "yes"
        }
        if shown:
            return name, frozenset(switches.keys() - shown)
    return None, frozenset()


def _old_thoughts(rig: Rig, reasoning: str | None, hides: frozenset[bool | None]) -> Support:
    thought = with_thought(_SAID, reasoning or REASONING_FIELDS[0], "probethoughtmark")
    return rig.shows([USER, thought, _MORE], "probethoughtmark", switches=shown_thinking(hides))


def shown_thinking(hides: frozenset[bool | None]) -> Json:
    """The switches with which thoughts are shown, where they are hidden without."""
    return dict.fromkeys(THINKING_SWITCHES, True) if None in hides else {}


def _called_text(rig: Rig, call: _CallForm, reasoning: str | None, hides: frozenset[bool | None]) -> CalledText:
    """The first place where the text of a message that calls is shown, together with its thought; a thought's own in a running
    loop alone, since templates cut old thoughts."""
    made = call.message("probevaluemark")
    switches = shown_thinking(hides)
    for form in _CALLED_TEXT_FORMS if call.support == "yes" else ():
        thought = {"beside": "probethoughtmark", "before": "probethoughtmark", "thought": "probethoughtmark probetextmark"}[form]
        calling = made | {"content": "probetextmark"} if form == "beside" else made
        if reasoning is not None:
            calling = with_thought(calling, reasoning, thought)
        loop = [USER, *([_said("probetextmark")] if form == "before" else []), calling, _RESULT]
        marks = ["probetextmark", "probevaluemark", *(["probethoughtmark"] if reasoning is not None else [])]
        running = rig.shows(loop, *marks, tools=TOOLS, switches=switches)
        answered = form == "thought" or rig.shows([*loop, _SAID, _MORE], *marks[:2], tools=TOOLS) == "yes"
        if running == "yes" and answered:
            return form
    return "nowhere" if call.support == "yes" else "beside"


def _call_ids(rig: Rig, loop: Sequence[Mapping[str, Any]]) -> Literal["any", "nine"]:
    user, message, result = loop
    called = {**message, "tool_calls": [message["tool_calls"][0] | {"id": _ORDINARY_ID}]}
    ordinary = [user, called, {**result, "tool_call_id": _ORDINARY_ID}]
    refuses = rig.shows(ordinary, tools=TOOLS) == "raises" and rig.shows(loop, tools=TOOLS) == "yes"
    return "nine" if refuses else "any"


def _tool_keys(rig: Rig) -> frozenset[str]:
    """Keys without which the template does not show a tool that it shows with them."""
    function = TOOLS[0]["function"]
    bare = {
        "description": function | {"parameters": function["parameters"]},
        "properties": function | {"parameters": {"type": "object"}},
    }
    del bare["description"]["description"]
    if rig.shows([USER], NAME, tools=TOOLS) != "yes":
        return frozenset()
    return frozenset(
        key
        for key, lacking in bare.items()
        if rig.shows([USER], NAME, tools=[{"type": "function", "function": lacking}]) != "yes"
    )


def _opening(rig: Rig) -> str:
    """What all generation prompts of the template begin with, whatever its thinking switches say."""
    prompts, refusal = list[str](), ""
    for switches in _SWITCHES:
        try:
            ended, begun = rig.render([USER], **switches), rig.render([USER], prompt=True, **switches)
        except BadRequest as error:
            refusal = error.message
            continue
        prompts.append(begun[len(common_start(ended, begun)) :])
    if not prompts:
        raise ModelFileError(f"The chat template refuses to begin the model's turn (add_generation_prompt): {refusal}")
    return common_start(*prompts)
