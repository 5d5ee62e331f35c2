"""One served model, wired: how its prompt is made, how its answers are read, and what the operator wants done with bad ones."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.answer import AnswerRules
from gateway.formats.base import Format
from gateway.prompt.prompter import Prompter


@dataclass(frozen=True, slots=True)
class Rendered:
    """A model that the gateway renders and parses for. `call_format` reads answers to requests with tools: it is the model's own
    format, or the one whose syntax the gateway states and constrains (`tools: constrained`)."""

    prompter: Prompter
    format: Format
    call_format: Format
    hold_arguments: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """`rendered` is None where the engine templates and parses itself (`format: engine`)."""

    name: str
    rendered: Rendered | None
    rules: AnswerRules
    created_s: int
    aliases: tuple[str, ...] = ()

    def format_name(self, with_tools: bool) -> str:
        """The format's name for metrics and the log."""
        if self.rendered is None:
            return "engine"
        return (self.rendered.call_format if with_tools else self.rendered.format).name


def by_name(models: tuple[Model, ...]) -> Mapping[str, Model]:
    """Every name and alias that a client may use."""
    return {name: model for model in models for name in (model.name, *model.aliases)}
