"""One model's files read and wired: what serving it and checking it have in common."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from gateway.errors import ModelFileError
from gateway.formats.base import Format
from gateway.model import Rendered
from gateway.profile_file import read_profile
from gateway.prompt.detect import FormatUnknown, detect_format
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.profile import Profile, differing
from gateway.prompt.prompter import Prompter
from gateway.prompt.source import read_model
from gateway.settings_fit import AUTO_FORMAT, Speech, ToolMode

CONSTRAINED_FORMAT = "hermes"  # the call syntax that is stated and enforced for a model not trained for tools


class ProfileError(Exception):
    """A profile cannot be followed: unreadable, of other files, or without a format. The message says what to do."""


FAULTS: Mapping[type[Exception], str] = MappingProxyType(
    {ModelFileError: "source", ProfileError: "profile", FormatUnknown: "format"}
)
"""What `voice_of` raises, and the settings key that each is about."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A model as it is served: its files, how prompts are made and answers read, and the profile that says so, if one does."""

    files: ModelFiles
    rendered: Rendered
    profile: Profile | None = None


def voice_of(speech: Speech, formats: Mapping[str, Format]) -> Voice:
    """Raises ModelFileError, FormatUnknown and ProfileError."""
    files = read_model(speech.source)
    profile = profile_for(speech.profile, files) if speech.profile is not None else None
    return wired(files, speech, formats, profile)


def wired(
    files: ModelFiles,
    speech: Speech,
    formats: Mapping[str, Format],
    profile: Profile | None,
    clock: Callable[[], datetime] | None = None,
) -> Voice:
    """As `voice_of`, for files that are read, whatever they were when the profile was made. `clock` tells templates the date, in
    place of the system's."""
    own = _format(files, speech, formats, profile)
    call_format = own
    if speech.tools == "constrained" and own.call_syntax is None:
        call_format = formats[CONSTRAINED_FORMAT]
    prompter = Prompter(
        files,
        tools=speech.tools,
        syntax=call_format.call_syntax,
        clock=clock or _now,
        seconds=time.thread_time,
        timer=time.perf_counter,
        guard=threading.Lock(),
        control_tokens=speech.control_tokens,
        profile=profile,
    )
    end, call_end = (prompter.thought_end(form.thought_closer) for form in (own, call_format))
    return Voice(files, Rendered(prompter, own, call_format, end, call_end), profile)


def profile_for(file: Path, files: ModelFiles) -> Profile:
    """A profile, held against the model's files as they are. Raises ProfileError."""
    try:
        profile = read_profile(file)
    except ModelFileError as error:
        raise ProfileError(str(error)) from None
    if changes := differing(profile.files, files.hashes):
        raise ProfileError(
            f"the model's files are not those that {file.name} was made of: {', '.join(changes)}. Derive it again with "
            "`interlock onboard`, and check it"
        )
    return profile


def _format(files: ModelFiles, speech: Speech, formats: Mapping[str, Format], profile: Profile | None) -> Format:
    """The one that the settings name, else the profile's, else what the template tells."""
    if speech.format != AUTO_FORMAT:
        declared = formats[speech.format]
        if profile is not None and profile.format.name not in (declared.name, None):
            raise ProfileError(
                f"the profile says format {profile.format.name}, the settings {declared.name}: leave `format` out of them"
            )
        return declared
    if profile is None:
        return detect_format(native_prompter(files), formats)
    name = profile.format.name
    if name is None:
        raise ProfileError(f"the profile names no format ({profile.format.why}): name one in its `format.name`")
    if name not in formats:
        raise ProfileError(f"the profile's format {name!r} is none that this version knows (docs/formats.md lists them)")
    return formats[name]


def native_prompter(files: ModelFiles, profile: Profile | None = None) -> Prompter:
    """What tells how the model's own template speaks."""
    return Prompter(files, tools="native", syntax=None, clock=_now, seconds=time.thread_time, profile=profile)


def tools_for(model: Path) -> ToolMode:
    """`constrained` where the model's template ignores tools. Raises ModelFileError."""
    return "native" if native_prompter(read_model(model)).capabilities.tools == "yes" else "constrained"


def _now() -> datetime:
    return datetime.now(UTC)
