"""What a check is made of: the model as the gateway would serve it, cases with their diagnosis and fix, and their report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.checks.rate import Rate
from gateway.formats.base import Format
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.profile import Checked, CheckName, Profile, Verdict
from gateway.prompt.prompter import Prompter
from gateway.prompt.renderer import Draft

CHECKS: tuple[CheckName, ...] = ("template", "reasoning", "stop", "tool_call")

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Case:
    """One case of one of the four tests. One that did not pass has a `diagnosis`, what was seen, and a `fix`, what to do."""

    test: CheckName
    name: str
    status: Status
    diagnosis: str = ""
    fix: str = ""


class Reference(Protocol):
    """Another renderer of the same model, to compare with."""

    @property
    def name(self) -> str:
        """What it is, with its version: `transformers 5.24.0`."""

    def text(self, draft: Draft) -> str:
        """The prompt's text. Raises BadRequest where the template refuses."""

    def ids(self, draft: Draft) -> Sequence[int] | None:
        """The prompt's ids; None where it has no tokenizer for this model."""

    @property
    def without_ids(self) -> str:
        """Why it has no tokenizer for this model; empty where it has one."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to be checked, wired as the gateway serves it. `now` are the hashes of its files as they are, `reference` is None
    where there is none to compare with."""

    name: str
    files: ModelFiles
    prompter: Prompter
    format: Format
    call_format: Format
    profile: Profile
    now: Mapping[str, str]
    reference: Reference | None = None


class Check(Protocol):
    """One of the four tests."""

    def __call__(self, subject: Subject) -> Iterator[Case]:
        """Its cases, run one after the other. Never raises for what the model's files or its profile say."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Calls as an engine's model makes them in one mode: `native`, or `constrained` by a grammar. `failed` are the answers with a
    call that could not be read, or did not fit its schema, of those with a call; `s_per_token` is the median of all answers'."""

    mode: str
    asked: int
    called: int
    failed: Rate
    s_per_token: float | None
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a check of one model came to. `of` is its profile's digest, `at` when (ISO 8601, UTC), `engine` what a live check was
    run on, `figures` what was measured there."""

    model: str
    of: str
    at: str
    interlock: str
    reference: str | None
    engine: str | None
    cases: tuple[Case, ...]
    figures: tuple[Figures, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether each test passed: no case failed, and one at least could be run."""
        return not self.checked().failed

    def checked(self) -> Checked:
        """What the profile keeps of it."""
        verdicts = {name: _verdict([case for case in self.cases if case.test == name]) for name in CHECKS}
        return Checked(self.of, self.at, self.interlock, self.reference, self.engine, verdicts)


def _verdict(cases: Sequence[Case]) -> Verdict:
    failed, skipped = (tuple(case.name for case in cases if case.status == status) for status in ("failed", "skipped"))
    return Verdict(not failed and len(skipped) < len(cases), len(cases), failed, skipped)


def grammar_taxes(figures: Sequence[Figures]) -> Mapping[str, float]:
    """By engine: how many times as long a token takes under a grammar, where both modes were measured."""
    times = {(each.engine, each.mode): each.s_per_token for each in figures}
    engines = dict.fromkeys(each.engine for each in figures)
    both = {engine: (times.get((engine, "native")), times.get((engine, "constrained"))) for engine in engines}
    return {engine: constrained / native for engine, (native, constrained) in both.items() if native and constrained}
