"""Models of the small vocabulary to be checked, with any template and profile, before a reference."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from support.subjects import formats
from support.vocabulary import fixed_clock, model_files

from gateway.checks.base import Reference, Subject
from gateway.prompt.derive import derive
from gateway.prompt.model_files import DEFAULT, ModelFiles
from gateway.prompt.profile import Profile
from gateway.prompt.prompter import Prompter

SPECIALS: Mapping[str, str] = {"bos_token": "<s>", "eos_token": "</s>"}


def with_template(source: str, specials: Mapping[str, str] = SPECIALS) -> ModelFiles:
    """A model with this template, whatever vocabulary that was made for."""
    return replace(model_files("full"), templates={DEFAULT: source}, specials=specials)


def profiled(files: ModelFiles, form: str | None = None) -> Profile:
    """The profile that `interlock onboard` makes; `form` is its format by a person's word."""
    return derive("m", files, formats(), declared=form)


def checked_model(
    files: ModelFiles,
    profile: Profile | None = None,
    *,
    form: str | None = None,
    reference: Reference | None = None,
    **how: Any,
) -> Subject:
    """The model with this profile, or its own. `how` is for the prompter."""
    said = profile or profiled(files, form)
    read = formats()[form or said.format.name or "plain"]
    given = {"tools": "native", "syntax": read.call_syntax, "clock": fixed_clock, "profile": said, **how}
    return Subject("m", files, Prompter(files, **given), read, read, said, files.hashes, reference)
