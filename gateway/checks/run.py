"""A model's files and its profile to what the four tests need, and the tests to a report."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from gateway.checks.base import CHECKS, Check, Report, Subject
from gateway.checks.reasoning import check_reasoning
from gateway.checks.reference import transformers_reference
from gateway.checks.stop import check_stop
from gateway.checks.template import check_template
from gateway.checks.tool_call import check_tool_call
from gateway.errors import ModelFileError
from gateway.formats.base import Format
from gateway.onboarding import model_name
from gateway.profile_file import read_profile, write_checked
from gateway.prompt.derive import derive
from gateway.prompt.detect import FormatUnknown
from gateway.prompt.model_files import DEFAULT, TOOL_USE, ModelFiles
from gateway.prompt.profile import CheckName, Profile, digest
from gateway.prompt.source import read_model
from gateway.settings_fit import AUTO_FORMAT, Speech
from gateway.voice import FAULTS, ProfileError, wired

_CHECKS: Mapping[CheckName, Check] = MappingProxyType(
    {"template": check_template, "reasoning": check_reasoning, "stop": check_stop, "tool_call": check_tool_call}
)


@dataclass(frozen=True, slots=True)
class Checking:
    """A model that is to be checked. `kept` is the profile's file, where its result goes; None where it was derived."""

    subject: Subject
    kept: Path | None


class Subjects:
    """Makes what is to be checked: each model's files are read once, and all are checked as of one moment."""

    def __init__(self, formats: Mapping[str, Format], now: datetime) -> None:
        self.formats = formats
        self._clock: Callable[[], datetime] = lambda: now
        self._made: dict[Speech, Checking] = {}

    def inspect(self, speech: Speech) -> Iterator[tuple[str, str]]:
        """The settings key and the message of what hinders a check."""
        try:
            if speech not in self._made:
                self._made[speech] = self.model(model_name(speech.source), speech)
        except tuple(FAULTS) as error:
            yield FAULTS[type(error)], str(error)

    def inspected(self, name: str, speech: Speech) -> Checking:
        """What `inspect` found nothing wrong with, by the name in the settings."""
        made = self._made[speech]
        return replace(made, subject=replace(made.subject, name=name))

    def model(self, name: str, speech: Speech) -> Checking:
        """A model that settings or an operator describe. A profile of other files is taken as it is: that is for the check to
        say. Raises ModelFileError, ProfileError and FormatUnknown."""
        files = read_model(speech.source)
        return Checking(self._subject(name, speech, files, self._profile(name, speech, files)), speech.profile)

    def alone(self, source: Path, profile: Path | None) -> Checking:
        """A model without settings: as `interlock up` would serve it, with tools stated by the gateway where its template states
        none. Raises as `model` does."""
        name, files = model_name(source), read_model(source)
        speech = Speech(source, AUTO_FORMAT, "native", profile=profile)
        own = self._profile(name, speech, files)
        can = own.templates.get(TOOL_USE) or own.templates.get(DEFAULT)
        if can is not None and can.tools != "yes":
            speech = speech._replace(tools="constrained")
        return Checking(self._subject(name, speech, files, own), profile)

    def _profile(self, name: str, speech: Speech, files: ModelFiles) -> Profile:
        if speech.profile is None:
            declared = None if speech.format == AUTO_FORMAT else speech.format
            derived = derive(name, files, self.formats, declared=declared, seconds=time.thread_time)
            if derived.format.name is None:
                raise FormatUnknown(derived.format.why)
            return derived
        try:
            return read_profile(speech.profile)
        except ModelFileError as error:
            raise ProfileError(str(error)) from None

    def _subject(self, name: str, speech: Speech, files: ModelFiles, profile: Profile) -> Subject:
        rendered = wired(files, speech, self.formats, profile, clock=self._clock).rendered
        return Subject(
            name=name,
            files=files,
            prompter=rendered.prompter,
            format=rendered.format,
            call_format=rendered.call_format,
            profile=profile,
            now=files.hashes,
            reference=transformers_reference(speech.source, files, self._clock),
        )


def check(subject: Subject, *, at: datetime, interlock: str) -> Report:
    """All four tests of one model. `interlock` is this version."""
    cases = tuple(case for name in CHECKS for case in _CHECKS[name](subject))
    reference = subject.reference.name if subject.reference is not None else None
    moment = at.astimezone(UTC).isoformat(timespec="seconds")
    return Report(subject.name, digest(subject.profile), moment, interlock, reference, None, cases)


def keep_results(checkings: Sequence[Checking], reports: Sequence[Report]) -> Iterator[str]:
    """Writes each result into its profile, and says where it went; of several for one profile, one that failed. Raises
    ModelFileError."""
    for each, report in sorted(zip(checkings, reports, strict=True), key=lambda pair: not pair[1].passed):
        if each.kept is None:
            yield f"{report.model}: the result is kept nowhere, without a profile (`interlock onboard` makes one)"
        else:
            write_checked(each.kept, report.checked())
            yield f"{report.model}: the result is kept in {each.kept}"
