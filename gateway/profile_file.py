"""A model's profile on disk: YAML that a person reads and may change.

Invariant: a file is written whole or not at all; what a person wrote outside `checked` survives a check.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import yaml

from gateway.errors import ModelFileError, SettingsError
from gateway.prompt.profile import Checked, Profile, checked_values, profile_of, profile_values
from gateway.settings_tree import read_tree

_HEAD = """\
# How Interlock speaks to this model, made by `interlock onboard`. What you change in `format`, `stop`, `thought_end` and
# `templates` is followed; `interlock check` says whether it holds. `files` and `checked` are the gateway's.
"""
_CHECKED = re.compile(r"""^(["']?)checked\1[ \t]*:.*\n(?:(?:[ \t].*)?\n)*""", re.MULTILINE)  # and what is indented below it
_WIDTH = 128
_FEW_LINES = 2
_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")  # which YAML would read as newlines, or blanks


class _Dumper(yaml.SafeDumper):
    """Quotes text that the reader would take for a number, though YAML 1.1 does not: `1e5`, `08`. Newlines are seen: as lines, or
    where there are one or two as `\\n`."""

    def text(self, value: str) -> yaml.ScalarNode:
        lines = value.strip("\n").count("\n") + 1
        breaks = _OTHER_BREAKS.search(value) is not None
        style = "|" if lines > _FEW_LINES and not breaks else '"' if "\n" in value or breaks else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)


def read_profile(file: Path) -> Profile:
    """Raises ModelFileError, which names the file and the field."""
    try:
        tree = read_tree(file, {})
    except SettingsError as error:
        raise ModelFileError("; ".join(error.problems)) from None
    if tree.problems:
        raise ModelFileError("; ".join(map(str, tree.problems)))
    try:
        return profile_of(tree.values)
    except ModelFileError as error:
        raise ModelFileError(f"{file}: {error}") from None


def _reads_as(file: Path, profile: Profile) -> bool:
    try:
        return read_profile(file) == profile
    except ModelFileError:
        return False


def write_profile(file: Path, profile: Profile) -> None:
    """Raises ModelFileError."""
    _write(file, profile_text(profile))


def write_checked(file: Path, checked: Checked) -> None:
    """Puts the last check into a profile, and leaves the rest as it is written. Raises ModelFileError, also where the profile is
    laid out so that it would not be one with the check in it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{file}: {error}") from None
    kept = _CHECKED.sub("", text if text.endswith("\n") else text + "\n")
    _write(file, kept + _yaml({"checked": checked_values(checked)}), replace(read_profile(file), checked=checked))


def profile_text(profile: Profile) -> str:
    """The profile as it is written."""
    return _HEAD + _yaml(profile_values(profile))


def _yaml(values: object) -> str:
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


def _write(file: Path, text: str, says: Profile | None = None) -> None:
    """`says` is what the text must be read as, or the file stays as it is."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if says is not None and not _reads_as(beside, says):
            beside.unlink()
            raise ModelFileError(
                f"{file}: the result cannot be put into it as it is laid out: write its keys as lines from the first column, as "
                "`interlock onboard` does"
            )
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ModelFileError(f"{file}: cannot be written: {error.strerror or error}") from None
