"""A model's profile, derived from its files alone: what its templates write, told by rendering marked conversations.

Invariant: the same files give the same profile, on any day and any machine. What cannot be told is said, never guessed.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.errors import BadRequest
from gateway.formats.base import Format
from gateway.prompt.cannot import cannot
from gateway.prompt.detect import PLAIN, FormatUnknown, detect_format
from gateway.prompt.loops import PLAIN as PLAIN_LOOP
from gateway.prompt.loops import agent_loops
from gateway.prompt.model_files import DEFAULT, TOOL_USE, ModelFiles
from gateway.prompt.probe import THINKING_SWITCHES, THOUGHT_MARKS, Capabilities
from gateway.prompt.profile import FormatChoice, Found, Loop, Profile, StopToken, Thoughts
from gateway.prompt.prompter import Prompter
from gateway.prompt.rig import TOOLS, USER, Rig
from gateway.prompt.template import ChatTemplate
from gateway.prompt.turn_end import turn_end
from gateway.prompt.written import Writing, whole_markers
from gateway.wire.text import common_start

Start = Literal["open", "closed", "unopened"]

_DAYS = (datetime(2001, 2, 3, tzinfo=UTC), datetime(2030, 11, 28, tzinfo=UTC))  # that share no part of a date
_SWITCHES: Mapping[Literal["none", "true", "false"], bool | None] = {"none": None, "true": True, "false": False}


def derive(
    model: str,
    files: ModelFiles,
    formats: Mapping[str, Format],
    *,
    declared: str | None = None,
    seconds: Callable[[], float] | None = None,
) -> Profile:
    """The profile of the model of this name. `declared` is its format by a person's word. Raises ModelFileError for a template
    that does not compile or does not show one user message."""
    native = Prompter(files, tools="native", syntax=None, clock=lambda: _DAYS[0], seconds=seconds)
    choice = format_choice(native, formats, declared)
    form = formats[choice.name] if choice.name is not None else None
    loops = agent_loops(native)
    return Profile(
        model=model,
        files=dict(files.hashes),
        format=choice,
        stop=tuple(StopToken(each, native.tokenizer.text_of(each)) for each in sorted(native.stop_ids)),
        thought_end=native.thought_end(form.thought_closer) if form is not None else None,
        templates=dict(native.abilities),
        found={
            name: _found(
                native, name, files, form, {each: loop for each, loop in loops.items() if _template_of(each, native) == name}
            )
            for name in native.abilities
        },
        conflicts=native.warnings,
    )


def format_choice(native: Prompter, formats: Mapping[str, Format], declared: str | None = None) -> FormatChoice:
    """The format, how sure it is, and why. Raises KeyError for a declared one that is none of the formats."""
    told, why = _told(native, formats)
    if declared is None:
        return FormatChoice(told, "unsure" if told is None else "told", why)
    name = formats[declared].name
    said = f"; the template tells {told}" if told not in (name, None) else ""
    return FormatChoice(name, "declared", f"named by a person{said}")


def _told(native: Prompter, formats: Mapping[str, Format]) -> tuple[str | None, str]:
    try:
        name = detect_format(native, formats).name
    except FormatUnknown as unknown:
        return None, str(unknown)
    if name == PLAIN:
        return name, "the template shows no tool calls, states no tools and knows no thoughts"
    return name, "it reads back the tool call that the template writes"


def _template_of(loop: str, native: Prompter) -> str:
    """The template that a loop's requests are made with."""
    return TOOL_USE if loop != PLAIN_LOOP and TOOL_USE in native.abilities else DEFAULT


def _found(native: Prompter, name: str, files: ModelFiles, form: Format | None, loops: Mapping[str, Loop]) -> Found:
    rig, can = Rig(native.renderer.templates[name], files.specials), native.abilities[name]
    controls = [token.text for token in native.tokenizer.added if token.special]
    end = turn_end(rig.drawn, can, controls)
    writing = Writing(rig, can, end)
    written = writing.tool_loop()
    return Found(
        generation_prompt=_generation_prompt(rig, None) or "",
        turn_end=end,
        thoughts=_thoughts(rig, can, writing, files.templates[name], form),
        call=written.call,
        calls=written.calls,
        result=written.result,
        loops=loops,
        dated=_dated(files.templates[name], files.specials),
        bos=_bos(rig.render([USER], prompt=True), files),
        cannot=cannot(can),
    )


def _generation_prompt(rig: Rig, thinking: bool | None) -> str | None:
    """What the model goes on after; None where the template takes no such switch."""
    switches: dict[str, Any] = {} if thinking is None else dict.fromkeys(THINKING_SWITCHES, thinking)
    try:
        ended, begun = rig.render([USER], **switches), rig.render([USER], prompt=True, **switches)
    except BadRequest:
        return None
    return begun[len(whole_markers(common_start(ended, begun))) :]


def _thoughts(rig: Rig, can: Capabilities, writing: Writing, template: str, form: Format | None) -> Thoughts | None:
    """None for a model that does not think, by its template and its format."""
    signs = [form.thought_sign] if form is not None else [end for _, end in THOUGHT_MARKS]
    prompts = {name: _generation_prompt(rig, value) for name, value in _SWITCHES.items()}
    start = {name: _start(text, form) for name, text in prompts.items() if text is not None}
    thinks = can.reasoning is not None or any(sign and sign in template for sign in signs)
    if not thinks and set(start.values()) <= {"unopened"}:
        return None
    return Thoughts(can.reasoning, writing.thought(), start, writing.keeps_thoughts(), can.old_thoughts == "yes")


def _start(generation_prompt: str, form: Format | None) -> Start:
    """By the format, or where none is known by the marks of most."""
    if form is not None:
        if form.open_thought(generation_prompt) is not None:
            return "open"
        return "closed" if form.thought_closer and form.thought_closer in generation_prompt else "unopened"
    begun, ended = (max(generation_prompt.rfind(pair[side]) for pair in THOUGHT_MARKS) for side in (0, 1))
    return "unopened" if begun < 0 and ended < 0 else ("open" if begun > ended else "closed")


def _dated(source: str, specials: Mapping[str, str]) -> bool:
    """Whether the prompt differs between two days."""

    def prompts(day: datetime) -> list[str]:
        rig = Rig(ChatTemplate(source, lambda: day), specials)
        return [rig.render([USER], prompt=True), *_with_tools(rig)]

    one, other = (prompts(day) for day in _DAYS)
    return one != other


def _with_tools(rig: Rig) -> list[str]:
    try:
        return [rig.render([USER], tools=TOOLS, prompt=True)]
    except BadRequest:
        return []


def _bos(prompt: str, files: ModelFiles) -> str:
    """What a prompt begins with, and whether a tokenizer that adds its own would add it."""
    token = files.specials.get("bos_token")
    if token and prompt.startswith(token):
        twice = " A tokenizer that adds its own, as the files want it, would write it twice." if files.bos is not None else ""
        return f"The template writes {token}.{twice}"
    if files.bos is not None:
        return f"None is written, though the files want {files.bos}."
    return "None: the template writes none, and the files want none."
