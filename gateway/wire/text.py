"""How the ends of texts match."""

from collections.abc import Iterable


def held_suffix(text: str, literals: Iterable[str]) -> int:
    """The length of the longest end of `text` that is a proper beginning of one of the literals: what must be held back."""
    longest = 0
    for literal in literals:
        for size in range(min(len(literal) - 1, len(text)), longest, -1):
            if text.endswith(literal[:size]):
                longest = size
                break
    return longest


def common_start(*texts: str) -> str:
    """What all of the texts, one at least, begin with."""
    first, last = min(texts), max(texts)
    return next((first[:at] for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), first)
