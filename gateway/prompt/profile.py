"""How one model is spoken to, as a file says it: derived from the model's own files once, looked through by a person, and held to
those files from then on.

What a person may change is followed: the format, the stop tokens, how a thought is ended, what each template can do. The rest
(`found`) is what was seen on the way, for the reader. Values only: `profile_values` and `profile_of` turn a profile into plain
ones and back, `gateway.profile_file` keeps it on disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from typing import Any, Literal

import msgspec

from gateway.errors import ModelFileError
from gateway.prompt.probe import Capabilities
from gateway.prompt.thought_end import ThoughtEnd

VERSION = 1

CheckName = Literal["template", "reasoning", "stop", "tool_call"]
Certainty = Literal["told", "declared", "unsure"]
"""Of a format: told from the template for certain, declared by a person, or not to be told."""


@dataclass(frozen=True, slots=True)
class StopToken:
    """A token that ends the model's turn. Its text is for the reader, and is held against the vocabulary."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """How the model writes thoughts and calls; no name where it is `unsure`. `why` says it in words."""

    name: str | None
    certainty: Certainty
    why: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """Whether each request of an agent's loop begins with the whole of the one before, so that a cache holds.

    Where it does not: the tokens of the earlier request that a turn loses, the most of a loop with short texts, and the earlier
    request's text from where they part.
    """

    stable: bool
    lost_tokens: int = 0
    parts_at: str = ""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """`field` is where the template reads thoughts, None where it reads none; `written` what it writes for an answer with one.
    `start` is how the generation prompt leaves the thought for each value of the thinking switch (`none`: not given)."""

    field: str | None
    written: str
    start: Mapping[Literal["none", "true", "false"], Literal["open", "closed", "unopened"]]
    kept_in_tool_loop: bool
    kept_after_user: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen of a template. `call`, `calls` and `result` are what it writes for one call, two calls, and a result.

    `loops` by name: `plain`, `tools`, `tools_then_user`. `dated`: the prompt differs from day to day. `bos` is what stands at the
    prompt's beginning, by whom; `cannot` says in plain words what the model cannot be shown.
    """

    generation_prompt: str
    turn_end: str | None
    thoughts: Thoughts | None
    call: str
    calls: str
    result: str
    loops: Mapping[str, Loop]
    dated: bool
    bos: str
    cannot: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one of the four tests: the names of its cases that failed, and of those that could not be run."""

    passed: bool
    cases: int
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """The last check: when (ISO 8601), with which version of Interlock, against which reference and live engine, if any. `of` is
    the digest of the profile that it was made of: one that was changed since is unchecked."""

    of: str
    at: str
    interlock: str
    reference: str | None
    engine: str | None
    tests: Mapping[CheckName, Verdict]

    @property
    def passed(self) -> Mapping[CheckName, bool]:
        """Which tests passed."""
        return {name: verdict.passed for name, verdict in self.tests.items()}

    @property
    def failed(self) -> tuple[CheckName, ...]:
        """The tests that failed."""
        return tuple(name for name, result in self.tests.items() if not result.passed)


@dataclass(frozen=True, slots=True)
class Profile:
    """`files` are the SHA-256 of what was read, by its name; `templates` and `found` are by the template's name.

    `conflicts` is where the files contradict each other, a sentence each.
    """

    model: str
    files: Mapping[str, str]
    format: FormatChoice
    stop: tuple[StopToken, ...]
    thought_end: ThoughtEnd | None
    templates: Mapping[str, Capabilities]
    found: Mapping[str, Found]
    conflicts: tuple[str, ...] = ()
    checked: Checked | None = None
    interlock_profile: int = field(default=VERSION, kw_only=True)


def profile_values(profile: Profile) -> dict[str, Any]:
    """The profile as plain values, always in the same order; its version comes first."""
    values: dict[str, Any] = _plain(profile)
    return {"interlock_profile": values.pop("interlock_profile"), **values}


def checked_values(checked: Checked) -> dict[str, Any]:
    """The last check as plain values, as `profile_values` has it."""
    values: dict[str, Any] = _plain(checked)
    return values


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, frozenset):
        return sorted(value, key=repr)  # None and booleans have no order
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def digest(profile: Profile) -> str:
    """What tells whether two profiles say the same, whatever their last checks."""
    said = profile_values(replace(profile, checked=None))
    return sha256(repr(said).encode()).hexdigest()


def profile_of(values: Mapping[str, Any]) -> Profile:
    """The profile that these values say. Raises ModelFileError, which names the field."""
    version = values.get("interlock_profile")
    if version != VERSION:
        raise ModelFileError(f"interlock_profile is {version!r}; this version reads {VERSION}: derive the profile again.")
    for part, kind in (("templates", Capabilities), ("found", Found)):
        named = values.get(part)
        for name, value in named.items() if isinstance(named, Mapping) else ():
            _converted(value, kind, f"{part}.{name}")
    profile: Profile = _converted(dict(values), Profile, "")
    if unknown := next(_unknown(values, profile_values(profile), ()), None):
        raise ModelFileError(f"{'.'.join(unknown)}: not a field of a profile.")
    return profile


def _converted(value: object, kind: type, at: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        path = f"{at}{place.rpartition('$')[2].rstrip('`')}".removeprefix(".") or "the profile"
        raise ModelFileError(f"{path}: {message[:1].lower()}{message[1:]}") from None


def _unknown(given: object, known: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Where a key was given that nothing reads: a slip, since what it should say would be lost without a word."""
    if isinstance(given, Mapping) and isinstance(known, Mapping):
        yield from ((*path, key) for key in given if key not in known)
        for key in given.keys() & known.keys():
            yield from _unknown(given[key], known[key], (*path, key))
    elif isinstance(given, list) and isinstance(known, list):
        for at, (one, other) in enumerate(zip(given, known, strict=False)):
            yield from _unknown(one, other, (*path, str(at)))


def differing(recorded: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What of the files differs from what a profile was made of, a sentence each."""
    changed = [f"{name} has changed" for name in sorted(recorded.keys() & now.keys()) if recorded[name] != now[name]]
    gone = [f"{name} is gone" for name in sorted(recorded.keys() - now.keys())]
    new = [f"{name} is new" for name in sorted(now.keys() - recorded.keys())]
    return (*changed, *gone, *new)
