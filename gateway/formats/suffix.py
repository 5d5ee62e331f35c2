"""Formats whose tags carry a suffix of the checkpoint's own in its vocabulary and its template: `<tool_call:x>`.

Invariant: with a suffix a format differs in nothing but its tags.
"""

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gateway.formats.spec import FormatSpec

_TAG = re.compile(r"</?[a-z_]+>")
_SUFFIX = r"[\w.-]{1,64}"


def is_suffix(text: str) -> bool:
    """Whether this may be the suffix of a tag."""
    return re.fullmatch(_SUFFIX, text) is not None


def suffix_in(spec: FormatSpec, text: str) -> str:
    """The suffix that the first block's opener has in this text; empty where it has none, or may have none."""
    if not spec.suffixed:
        return ""
    found = re.search(rf"{re.escape(spec.blocks[0].opener.text.removesuffix('>'))}:({_SUFFIX})>", text)
    return found[1] if found else ""


def with_suffix(spec: FormatSpec, suffix: str) -> FormatSpec:
    """The same format, its tags with this suffix; its name is the format's with the same suffix."""
    suffixed: FormatSpec = _suffixed(spec, suffix)
    return replace(suffixed, name=f"{spec.name}:{suffix}", aliases=(), suffixed=False)


def _suffixed(value: Any, suffix: str) -> Any:
    """The value with its tags replaced, as deep as it is."""
    if isinstance(value, str):
        return f"{value[:-1]}:{suffix}>" if _TAG.fullmatch(value) else value
    if isinstance(value, tuple):
        return tuple(_suffixed(each, suffix) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _suffixed(getattr(value, field.name), suffix) for field in fields(value)})
    return value
