"""Text matching over pieces of a stream."""

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
