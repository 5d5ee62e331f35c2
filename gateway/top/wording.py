"""Numbers as people read them, and words of others made harmless. PURE.

Invariant: what is not known is `–`, never 0; no text that this gives has a character on which a terminal acts.
"""

UNKNOWN = "–"
_MOST_CHARS = 200


def seconds(value: float | None) -> str:
    """As `84 ms` or `1.2 s`."""
    if value is None:
        return UNKNOWN
    if value < 0.0995:
        return f"{value * 1000:.0f} ms" if value >= 0.0095 or value == 0 else f"{value * 1000:.1f} ms"
    if value < 9.95:
        return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s"
    return f"{value:.0f} s"


def rate(value: float | None) -> str:
    """In a second, as `0.25`, `3.1` or `1,204`."""
    if value is None:
        return UNKNOWN
    if value and value < 0.005:
        return "<0.01"
    return f"{value:.2f}" if 0 < value < 0.995 else f"{value:.1f}" if 0 < value < 99.5 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """A whole number."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Of a hundred; what is neither none nor all is not rounded to it."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= value < 1 else f"{value:.0%}"


def text(value: str | None, most: int = _MOST_CHARS) -> str:
    """Somebody else's words on one line, cut where they are long."""
    if not value:
        return UNKNOWN
    return visible(value if len(value) <= most else f"{value[: most - 1]}…")


def visible(value: str) -> str:
    """A text with the escape of each character that is not printable: `\\n`, `\\x1b`, `\\u202e`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
