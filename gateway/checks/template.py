"""The test `template`: prompts are those of the model's own files, whole, and the same as another renderer makes of them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gateway.checks.base import Case, Reference, Status, Subject
from gateway.checks.control_tokens import bos, markers, spelled
from gateway.checks.conversations import Conversation, Mark, MarkKind, conversations
from gateway.checks.reference import MISSING
from gateway.errors import BadRequest
from gateway.prompt.model_files import DEFAULT, TOOL_USE
from gateway.prompt.normalize import thinking_switch
from gateway.prompt.probe import THINKING_SWITCHES, Capabilities
from gateway.prompt.profile import differing
from gateway.prompt.prompter import Plan
from gateway.request import GenerateRequest, Message, Prompt, ToolSpec
from gateway.wire.text import common_start

_OF_KIND: Mapping[MarkKind, tuple[str, ...]] = {"thought": ("reasoning", "old_thoughts"), "beside": ("called_text",)}
_INDEX = re.compile(r"messages\[(\d{1,4})\]")
_SPELLED = 4  # control tokens
_AROUND = 30  # characters shown on either side of a difference
_AGAIN = "run `interlock onboard` again"
_OURS = "The gateway and transformers are at odds about this template: report it, and do not serve the model with it until then."


@dataclass(frozen=True, slots=True)
class _Tried:
    """A conversation and what became of it: a prompt, or an error, or marks that the prompt should show and does not."""

    conversation: Conversation
    plan: Plan | None
    outcome: Prompt | BadRequest | tuple[Mark, ...]

    @property
    def prompt(self) -> Prompt | None:
        """The prompt, if it came to one."""
        return self.outcome if isinstance(self.outcome, Prompt) else None


def check_template(subject: Subject) -> Iterator[Case]:
    """Its cases: the files, each conversation by itself and against the reference, then what holds for all of them."""
    yield from _files(subject)
    yield markers(subject)
    yield from _without_reference(subject.reference)
    tried: list[_Tried] = []
    for conversation in _conversations(subject):
        tried.append(_try(subject, conversation))
        yield _judged(subject, tried[-1])
        yield from _compared(subject.reference, tried[-1])
    yield bos(subject, [each.prompt for each in tried if each.prompt is not None])
    yield _twice(subject, tried)


def _case(name: str, status: Status = "passed", diagnosis: str = "", fix: str = "") -> Case:
    return Case("template", name, status, diagnosis, fix)


def _files(subject: Subject) -> Iterator[Case]:
    changes = differing(subject.profile.files, subject.now)
    if not changes:
        yield _case("files")
    for change in changes:
        yield _case(
            f"files: {change.partition(' ')[0]}",
            "failed",
            f"{change} since the profile was made.",
            "Run `interlock onboard` again, look the new profile through, and check anew.",
        )


def _without_reference(reference: Reference | None) -> Iterator[Case]:
    if reference is None:
        why = f"The prompts were not compared with another renderer's: {MISSING}."
        yield _case("reference", "skipped", why, "Install it where the check runs.")
    elif reference.without_ids:
        yield _case("reference ids", "skipped", f"The token ids were not compared: {reference.without_ids}.")


def _conversations(subject: Subject) -> Iterator[Conversation]:
    prompter = subject.prompter
    renderer, can = prompter.renderer, prompter.capabilities
    reads = frozenset().union(*(template.variables for template in renderer.templates.values()))
    ends = [*prompter.turn_ends, *map(prompter.tokenizer.text_of, sorted(prompter.stop_ids))]
    known = [text for text in dict.fromkeys([*ends, *sorted(renderer.controls)]) if text in renderer.controls]
    return conversations(
        tools=_plannable(subject),
        thoughts=can.reasoning is not None,
        switch=not reads.isdisjoint(THINKING_SWITCHES),
        controls=known[:_SPELLED],
    )


def _plannable(subject: Subject) -> bool:
    """Whether tools can be shown: by the template, or by the gateway's own words."""
    try:
        subject.prompter.plan(GenerateRequest("", (Message("user", "a"),), (ToolSpec("f"),)))
    except BadRequest:
        return False
    return True


def _try(subject: Subject, conversation: Conversation) -> _Tried:
    """What the gateway makes of it. The proof that every word is shown comes last: without it the text tells what is missing."""
    prompter, plan = subject.prompter, None
    try:
        plan = prompter.plan(conversation.request)
        text = prompter.renderer.render(replace(plan.draft, claims=())).text
        can = subject.profile.templates[plan.draft.template]
        lost = tuple(mark for mark in conversation.marks if mark.word not in text and not _left_out(mark, conversation, can))
        if lost:
            return _Tried(conversation, plan, lost)
        return _Tried(conversation, plan, prompter.prompt(conversation.request))
    except BadRequest as error:
        return _Tried(conversation, plan, error)


def _left_out(mark: Mark, conversation: Conversation, can: Capabilities) -> bool:
    """Whether the profile says that the template leaves this out: thoughts, and text beside calls."""
    if mark.kind == "beside":
        return can.called_text in ("nowhere", "thought")
    if mark.kind != "thought":
        return False
    request = conversation.request
    asked = max((index for index, message in enumerate(request.messages) if message.role == "user"), default=-1)
    hidden = can.reasoning is None or thinking_switch(request.template_kwargs) in can.hides_thoughts
    running = mark.index > asked and bool(request.messages[mark.index].tool_calls)  # thoughts of a loop are always needed
    return hidden or (not running and can.old_thoughts != "yes")


def _judged(subject: Subject, tried: _Tried) -> Case:
    match tried.outcome:
        case Prompt() as prompt:
            return spelled(subject, tried.conversation, prompt)
        case BadRequest() as error:
            return _refused(subject, tried, error)
        case lost:
            return _lost(subject, tried, lost)


def _refused(subject: Subject, tried: _Tried, error: BadRequest) -> Case:
    """That is right where the profile says that the template cannot show it."""
    name, request, where = tried.conversation.name, tried.conversation.request, error.param or "the request"
    if request.continue_final_message or tried.conversation.spells_controls:
        return _case(name, "skipped", f"{where} is refused: {error.message.rstrip('.')}.")
    needs = _needs(request, error.param)
    said = _said(subject, tried, needs)
    if any(value != "yes" for value in said.values()):
        return _case(name)
    return _case(
        name,
        "failed",
        f"{where} is refused, though the profile says {_listed(said)}: {error.message.rstrip('.')}.",
        f"Say under `templates` in the profile what the template cannot show, or {_AGAIN}.",
    )


def _lost(subject: Subject, tried: _Tried, lost: tuple[Mark, ...]) -> Case:
    mark = lost[0]
    said = _said(subject, tried, _OF_KIND.get(mark.kind) or _needs(tried.conversation.request, mark.place))
    others = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    role = tried.conversation.request.messages[mark.index].role if mark.index >= 0 else "tool"
    return _case(
        tried.conversation.name,
        "failed",
        f"The {mark.kind} of {mark.place}, role {role}, is not in the prompt: the template drops {mark.word}{others}, "
        f"though the profile says {_listed(said)}.",
        f"Say `drops` for it under `templates` in the profile, so that the gateway maps or refuses it, or {_AGAIN}.",
    )


def _said(subject: Subject, tried: _Tried, names: tuple[str, ...]) -> Mapping[str, str]:
    """What the profile says of these abilities."""
    templates = subject.profile.templates
    can = templates[tried.plan.draft.template] if tried.plan else templates.get(TOOL_USE, templates[DEFAULT])
    return {name: str(getattr(can, name)) for name in names}


def _listed(said: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in said.items()) or "nothing of it"


def _needs(request: GenerateRequest, place: str | None) -> tuple[str, ...]:
    """The template's abilities that this field of the request needs; all that the request needs where it names no message."""
    found = _INDEX.match(place or "")
    if (place or "").startswith("tools"):
        return ("tools",)
    if found and int(found[1]) < len(request.messages):
        return _of_message(request, int(found[1]))
    return tuple(dict.fromkeys(need for index in range(len(request.messages)) for need in _of_message(request, index)))


def _of_message(request: GenerateRequest, index: int) -> tuple[str, ...]:
    message, before = request.messages[index], request.messages[:index]
    last = before[-1] if before else None
    later = any(each.role not in ("system", "developer") for each in before)
    match message.role:
        case "system":
            return ("later_system", "system") if later else ("system",)
        case "developer":
            return ("later_developer", "later_system") if later else ("developer", "system")
        case "tool" | "function":
            return ("tool_results",)
        case "user" if last is not None:
            return ("open_calls",) if last.tool_calls else ("consecutive_users",) if last.role == "user" else ()
        case "assistant":
            first = ("first_answer", "first_beside_tools") if not any(each.role == "user" for each in before) else ()
            after = ("consecutive_assistants",) if last is not None and last.role == "assistant" else ()
            empty = ("empty_answer",) if not message.content and not message.tool_calls else ()
            return (*first, *after, *empty, *("tool_calls", "parallel_calls")[: len(message.tool_calls)])
    return ()


def _compared(reference: Reference | None, tried: _Tried) -> Iterator[Case]:
    """Text and ids against the reference's, of a prompt that the gateway made."""
    if reference is None or tried.plan is None or tried.prompt is None:
        return
    name, draft = f"{tried.conversation.name} as {reference.name.partition(' ')[0]}", tried.plan.draft
    try:
        text, ids = reference.text(draft), reference.ids(draft)
    except BadRequest as error:
        yield _case(name, "failed", f"{error.message}. The gateway does.", _OURS)
        return
    if text != tried.prompt.text:
        yield _case(name, "failed", f"The prompts part {_parting(tried.prompt.text, text)}.", _OURS)
    elif ids is not None and not tried.conversation.spells_controls and tuple(ids) != tried.prompt.ids:
        own_ids = tried.prompt.ids
        at = next((at for at, each in enumerate(own_ids) if [*ids[at : at + 1]] != [each]), len(own_ids))
        own, other = list(own_ids[at : at + 5]), list(ids[at : at + 5])
        yield _case(
            name, "failed", f"The texts are the same, the token ids part at {at}: {own}, by the reference {other}.", _OURS
        )
    else:
        yield _case(name)


def _parting(own: str, other: str) -> str:
    at = len(common_start(own, other))
    begin = max(at - _AROUND, 0)
    return f"at character {at}: {own[begin : at + _AROUND]!r}, by the reference {other[begin : at + _AROUND]!r}"


def _twice(subject: Subject, tried: list[_Tried]) -> Case:
    """The same request gives the same prompt, whatever was rendered in between."""
    for each in tried:
        again = _try(subject, each.conversation).prompt if each.prompt is not None else None
        if each.prompt is None or again == each.prompt:
            continue
        text = again.text if again is not None else ""
        parts = _parting(each.prompt.text, text) if text != each.prompt.text else "in their token ids"
        return _case(
            "twice",
            "failed",
            f"{each.conversation.name} gave two prompts, which part {parts}.",
            "Check again; where it is the time of day, let the template write no more than the date.",
        )
    return _case("twice")
