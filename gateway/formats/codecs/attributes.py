"""What stands in the tags of calls: names, and attributes in quotes."""

import re

_ATTRIBUTES = re.compile(r"""(?:\s*[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'))*\s*/?\s*""")  # of a tag, which is short


def plain(text: str) -> str:
    """Text with its entities read."""
    for entity, character in (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return text


def quoted_text(text: str) -> tuple[str, str]:
    """What stands at the beginning without its quotes, all of it where there are none, and what follows it."""
    text = text.strip()
    if text[:1] not in ('"', "'"):
        return text, ""
    inside, _, rest = text[1:].partition(text[0])
    return inside.strip(), rest


def after_quotes(text: str) -> str:
    """What follows the quoted text at the beginning, if it holds more than attributes."""
    rest = quoted_text(text)[1]
    return "" if _ATTRIBUTES.fullmatch(rest) else rest


def undoubled(name: str, names: frozenset[str]) -> str:
    """The name of a tool that a model writes as its own namespace too, `f.f`."""
    first, _, second = name.partition(".")
    return first if name not in names and first == second and first in names else name
