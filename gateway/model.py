"""One served model, wired: how its prompt is made, how its answers are read, and what the operator wants done with bad ones."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from gateway.answer import AnswerRules
from gateway.errors import ContextTooLong
from gateway.formats.base import Format
from gateway.prompt.profile import Checked, CheckName, Profile, digest
from gateway.prompt.prompter import Prompter
from gateway.prompt.renderer import Draft, Rendering
from gateway.prompt.thought_end import ThoughtEnd
from gateway.request import Prompt


@dataclass(frozen=True, slots=True)
class Rendered:
    """A model that the gateway renders and parses for. `call_format` reads answers to requests with tools: it is the model's own
    format, or the one whose syntax the gateway states and constrains (`tools: constrained`). `thought_end` and `call_thought_end`
    are how thoughts in the two are ended. `apart` renders in another process
    what would take long, and raises as the prompter's renderer does; None where there is no such process, so that threads do it,
    whose `turn` it is, one after the other."""

    prompter: Prompter
    format: Format
    call_format: Format
    thought_end: ThoughtEnd | None = None
    call_thought_end: ThoughtEnd | None = None
    hold_arguments: bool = False
    apart: Callable[[Draft], Awaitable[Rendering]] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)

    def format_for(self, with_tools: bool) -> Format:
        """What reads the answer to a request that offers tools, or offers none."""
        return self.call_format if with_tools else self.format

    def thought_end_for(self, with_tools: bool) -> ThoughtEnd | None:
        """How a thought in it is ended; None where it has no thoughts."""
        return self.call_thought_end if with_tools else self.thought_end


@dataclass(frozen=True, slots=True)
class Model:
    """`rendered` is None where the engine templates and parses itself (`format: engine`). `checked` is the last check of the
    model as it is now, None where there was none; `closed` says why no request is answered, None where they are."""

    name: str
    rendered: Rendered | None
    rules: AnswerRules
    created_s: int
    aliases: tuple[str, ...] = ()
    checked: Checked | None = None
    closed: str | None = None

    def format_names(self) -> tuple[str, ...]:
        """Every name that `format_name` gives."""
        return tuple({self.format_name(False): None, self.format_name(True): None})

    def format_name(self, with_tools: bool) -> str:
        """The format's name for metrics and the log."""
        if self.rendered is None:
            return "engine"
        return self.rendered.format_for(with_tools).name


def valid_check(profile: Profile | None) -> Checked | None:
    """The last check of a profile; None where there was none of all tests, or the profile was changed since."""
    checked = profile.checked if profile is not None else None
    if profile is None or checked is None or checked.of != digest(profile):
        return None
    return checked if checked.tests.keys() == set(get_args(CheckName)) else None


def closed_for(checked: Checked | None, *, required: bool) -> str | None:
    """Why a model with this check is not served; None where it is. `required`: one without a check is not."""
    if checked is None:
        return "it has not been checked, or not since its profile was changed (`interlock check`)" if required else None
    if checked.failed:
        return f"its check failed: {', '.join(checked.failed)} (`interlock check` says why)"
    return None


def by_name(models: tuple[Model, ...]) -> Mapping[str, Model]:
    """Every name and alias that a client may use."""
    return {name: model for model in models for name in (model.name, *model.aliases)}


def fitted(prompt: Prompt, max_tokens: int | None, context_tokens: int | None) -> Prompt:
    """The prompt, with `max_tokens` within what the context leaves. Raises ContextTooLong: it leaves nothing."""
    if context_tokens is None:
        return replace(prompt, max_tokens=max_tokens)
    room = context_tokens - len(prompt.ids)
    if room <= 0:
        raise ContextTooLong(len(prompt.ids), context_tokens)
    if max_tokens is None or max_tokens <= room:
        return replace(prompt, max_tokens=room if max_tokens is None else max_tokens)
    cut = f"max_tokens: {room} of {max_tokens} are left of the context"
    return replace(prompt, max_tokens=room, notes=(*prompt.notes, cut))
