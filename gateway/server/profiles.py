"""What the gateway knows of each model that it serves, as its operator reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256

from gateway.model import Model
from gateway.prompt.probe import Capabilities

_HASH_CHARS = 16
_NOT_SHOWN = ("opening", "cuts_at", "tool_keys", "refusals")  # of what a template can: texts of its own


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One of the four tests of the last check. `failed` are the names of its cases that did."""

    name: str
    passed: bool
    cases: int
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model. `templates` are names with the beginning of their SHA-256, `stops` ids with their text, `can` what its template
    (the one for tools, where it has one) does with each kind of message. `closed`: why it is not served. Without `rendered` its
    engine templates and parses, and nothing of that is known. `checked_at` is None where it was not checked as it is."""

    name: str
    aliases: tuple[str, ...]
    closed: str | None
    rendered: bool
    format: str
    format_with_tools: str
    context_tokens: int | None
    templates: tuple[tuple[str, str], ...]
    stops: tuple[tuple[int, str], ...]
    can: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    checked_at: str | None
    checked_with: str | None
    checked_engine: str | None
    tests: tuple[CheckResult, ...]


def profiles(models: Sequence[Model]) -> tuple[ModelProfile, ...]:
    """In the order of the settings."""
    return tuple(_profile(model) for model in models)


def _profile(model: Model) -> ModelProfile:
    prompter = model.rendered.prompter if model.rendered is not None else None
    checked = model.checked
    tests = () if checked is None else tuple(CheckResult(n, v.passed, v.cases, v.failed) for n, v in checked.tests.items())
    sources = prompter.sources if prompter is not None else {}
    stops = sorted(prompter.stop_ids) if prompter is not None else ()
    can = prompter.capabilities if prompter is not None else None
    return ModelProfile(
        name=model.name,
        aliases=model.aliases,
        closed=model.closed,
        rendered=prompter is not None,
        format=model.format_name(False),
        format_with_tools=model.format_name(True),
        context_tokens=prompter.context_tokens if prompter is not None else None,
        templates=tuple((name, sha256(source.encode()).hexdigest()[:_HASH_CHARS]) for name, source in sources.items()),
        stops=tuple((stop, prompter.tokenizer.text_of(stop)) for stop in stops) if prompter is not None else (),
        can=() if can is None else _abilities(can),
        warnings=prompter.warnings if prompter is not None else (),
        checked_at=checked.at if checked is not None else None,
        checked_with=checked.interlock if checked is not None else None,
        checked_engine=checked.engine if checked is not None else None,
        tests=tests,
    )


def _abilities(can: Capabilities) -> tuple[tuple[str, str], ...]:
    names = (each.name for each in fields(can) if each.name not in _NOT_SHOWN)
    return tuple((name.replace("_", " "), _said(getattr(can, name))) for name in names)


def _said(value: object) -> str:
    if isinstance(value, frozenset | set | tuple | list):
        return ", ".join(sorted(map(str, value))) or "none"
    return "none" if value is None else str(value)
