"""`interlock onboard`: a model's files to its profile, and the profile to a file and to words."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.errors import ModelFileError
from gateway.formats.base import Format
from gateway.profile_file import read_profile, write_profile
from gateway.prompt.derive import derive
from gateway.prompt.profile import Found, Loop, Profile, Thoughts, differing, profile_values
from gateway.prompt.source import read_model
from gateway.wire.jsonio import dumps

_WEIGHTS = ".gguf"
_GIVEN: Mapping[str, str] = {"none": "not given", "true": "on", "false": "off"}
_LOOPS: Mapping[str, str] = {"plain": "in a chat", "tools": "with tools", "tools_then_user": "tools, user"}


class ProfileThere(Exception):
    """There is another profile already; the message says what would be lost."""


def onboard(model: Path, formats: Mapping[str, Format], declared: str | None = None) -> Profile:
    """Reads the files and derives the profile. `declared` is the format by a person's word. Raises ModelFileError."""
    return derive(model_name(model), read_model(model), formats, declared=declared, seconds=time.thread_time)


def model_name(model: Path) -> str:
    """What a model is called by its file or directory; one of Hugging Face's cache by its repository."""
    path = model.absolute()
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2]
    name = path.resolve().name if path.name in ("", "..") else path.name
    return name[: -len(_WEIGHTS)] if name.lower().endswith(_WEIGHTS) else name


def keep(file: Path, profile: Profile, *, replace: bool = False) -> bool:
    """Writes the profile; False where the file says the same already, be it checked since or not. Raises ProfileThere where it
    says something else, unless that is to be replaced, and ModelFileError."""
    if file.exists() and not replace:
        try:
            there = read_profile(file)
        except ModelFileError as error:
            raise ProfileThere(f"{error}. `--force` writes a new profile in its place") from None
        said, now = (profile_values(each) | {"checked": None} for each in (there, profile))
        if said == now:
            return False
        parts = ", ".join(key for key in now if said[key] != now[key])
        why = f" ({'; '.join(changes)})" if (changes := differing(there.files, profile.files)) else ""
        raise ProfileThere(
            f"{file} says something else of {parts}{why}: `--force` replaces it, with its last check and what was changed by hand"
        )
    write_profile(file, profile)
    return True


def summary(profile: Profile) -> Iterator[str]:
    """What a person should know of a profile, a line each."""
    choice = profile.format
    yield f"{profile.model}: format {choice.name or 'unknown'} ({choice.certainty}: {choice.why})"
    yield f"  stops at      {', '.join(f'{token.text} ({token.id})' for token in profile.stop)}"
    for name, found in profile.found.items():
        if len(profile.found) > 1:
            yield f"  With the template {name}:"
        yield from _told(found)
    yield from _listed("Its files are at odds:", profile.conflicts)


def _told(found: Found) -> Iterator[str]:
    yield f"  prompt ends   {dumps(found.generation_prompt) if found.generation_prompt else 'with the last message'}"
    yield f"  turn ends     {found.turn_end or 'with no token of its own'}"
    yield f"  thoughts      {_thoughts(found.thoughts)}"
    yield f"  a call        {dumps(found.call) if found.call else 'is not shown'}"
    yield from (f"  {_LOOPS[name]:<14}{_stability(loop)}" for name, loop in found.loops.items())
    yield f"  the date      {'is in the prompt: it differs from day to day' if found.dated else 'is not in the prompt'}"
    yield f"  BOS           {found.bos}"
    yield from _listed("What it cannot do:", found.cannot)


def _thoughts(thoughts: Thoughts | None) -> str:
    if thoughts is None:
        return "none"
    read = f"read from `{thoughts.field}`" if thoughts.field else "of earlier turns are not read"
    start = ", ".join(f"{_GIVEN[name]} {how}" for name, how in thoughts.start.items())
    return f"{read}; how the prompt leaves the thought, by the thinking switch: {start}"


def _stability(loop: Loop) -> str:
    if loop.stable:
        return "each request goes on from the one before"
    return f"a turn loses {loop.lost_tokens} tokens of the cache, from {dumps(loop.parts_at)} on"


def _listed(head: str, sentences: tuple[str, ...]) -> Iterator[str]:
    if sentences:
        yield f"  {head}"
    yield from (f"    - {sentence}" for sentence in sentences)
