"""Profiles for tests that need one and do not derive it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gateway.profile_file import write_profile
from gateway.prompt.model_files import DEFAULT
from gateway.prompt.profile import Checked, CheckName, FormatChoice, Profile, StopToken, Verdict, digest
from gateway.prompt.source import read_model
from gateway.voice import native_prompter

PASSED: Mapping[CheckName, bool] = {"template": True, "reasoning": True, "stop": True, "tool_call": True}


def profile_of(source: Path, form: str | None = "hermes") -> Profile:
    """What the files of a model say, without what is only for a reader."""
    files = read_model(source)
    prompter = native_prompter(files)
    return Profile(
        model=source.name,
        files=files.hashes,
        format=FormatChoice(form, "unsure" if form is None else "told", "two formats read it"),
        stop=tuple(StopToken(token, files.tokenizer.text_of(token)) for token in sorted(prompter.stop_ids)),
        thought_end=None,
        templates={DEFAULT: prompter.capabilities},
        found={},
    )


def checked(profile: Profile, tests: Mapping[CheckName, bool] = PASSED) -> Profile:
    """The profile, with a last check that came to this."""
    verdicts = {name: Verdict(passed, 3, () if passed else ("a case",)) for name, passed in tests.items()}
    return replace(profile, checked=Checked(digest(profile), "2026-03-14T15:09:26Z", "0.1.0", None, None, verdicts))


def written(profile: Profile, folder: Path) -> str:
    """Its file."""
    file = folder / "profile.yaml"
    write_profile(file, profile)
    return str(file)
