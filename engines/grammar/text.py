"""The words of GBNF: literals, classes, repetitions, numbers in a range, text without a marker. Strings in, strings out."""

from collections.abc import Callable, Iterator, Mapping

_MOST = 10**19 - 1
_ESCAPES: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def literal(text: str) -> str:
    """Exactly this text."""
    if text.isprintable():  # nearly all are: a tenth of the time
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return '"' + "".join(_ESCAPES.get(one) or (one if one.isprintable() else _code(one)) for one in text) + '"'


def one_of(chars: str, *, negated: bool = False) -> str:
    """Any character of these, or any other."""
    return f"[{'^' if negated else ''}{''.join(map(_code, chars))}]"


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02X}" if number < 0x100 else f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"


def times(low: int, high: int | None) -> str:
    """The sign after a thing that is repeated."""
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{low},}}"
        case _ if low == high:
            return f"{{{low}}}"
    return f"{{{low},{high}}}"


def listed(member: str, comma: str, low: int, high: int | None) -> str:
    """`low` to `high` members with commas between them; `high` is at least 1."""
    rest = "" if high == 1 else f" ({comma} {member}){times(max(low - 1, 0), None if high is None else high - 1)}"
    return f"{member}{rest}" if low else f"({member}{rest})?"


def integers(low: int | None, high: int | None) -> list[str]:
    """Alternatives that are together the integers from `low` to `high`, of at most 19 digits; none where there are none."""
    if low is None and high is None:
        return ["integer"]
    if low == 0 and high is None:
        return ["natural"]
    low, high = max(-_MOST, low if low is not None else -_MOST), min(_MOST, high if high is not None else _MOST)
    negative = ['"-" ' + body for body in _naturals(max(1, -high), -low)]
    return negative + list(_naturals(max(0, low), high))


def decimals(low: int | None, high: int | None) -> list[str]:
    """Alternatives that are together the numbers from `low` to `high`, written without an exponent; none where there are none.

    A bound of more than 19 digits is none.
    """
    low = low if low is not None and low >= -_MOST else None
    high = high if high is not None and high <= _MOST else None
    if low is None and high is None:
        return ["number"]
    if low == 0 and high is None:
        return ["natural fraction"]
    ways: list[str] = []
    if low is None or low < 0:
        ways += ['"-" ' + body for body in _sizes(max(0, -high) if high is not None else 0, -low if low is not None else None)]
    if high is None or high >= 0:
        ways += _sizes(max(0, low) if low is not None else 0, high)
    return ways


def _sizes(low: int, high: int | None) -> list[str]:
    """Numbers without a sign: any fraction after a whole part, but none after the highest."""
    if high is None:
        return [f"{body} decimals" for body in _naturals(low, _MOST)]
    ends = [f"{literal(str(high))} zeros"] if low <= high else []
    return [f"{body} decimals" for body in _naturals(low, high - 1)] + ends


def _naturals(low: int, high: int) -> Iterator[str]:
    """One stretch of equally long numbers after the other."""
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        yield from _same_length(str(low), str(last))
        low = last + 1


def _same_length(low: str, high: str) -> Iterator[str]:
    """Splits at the first digit, where the rest is not free."""
    rest = len(low) - 1
    if low == high:
        yield literal(low)
    elif low[1:] == "0" * rest and high[1:] == "9" * rest:
        yield f"[{low[0]}-{high[0]}]" + (f" [0-9]{{{rest}}}" if rest else "")
    elif low[0] == high[0]:
        yield from (f"{literal(low[0])} {body}" for body in _same_length(low[1:], high[1:]))
    else:
        first, last = int(low[0]), int(high[0])
        if low[1:] != "0" * rest:
            yield from _same_length(low, low[0] + "9" * rest)
            first += 1
        if high[1:] != "9" * rest:
            last -= 1
        if first <= last:
            yield from _same_length(str(first) + "0" * rest, str(last) + "9" * rest)
        if high[1:] != "9" * rest:
            yield from _same_length(high[0] + "0" * rest, high)


def avoiding(marker: str, new_name: Callable[[], str], after: str | None = None) -> Mapping[str, str]:
    """Rules, the first one first, for any text that nowhere holds the marker: one rule for each part of it that was just seen.

    With `after`, the text is followed by the marker and by this body.
    """
    names = [new_name() for _ in marker]
    others = "".join(dict.fromkeys(marker))
    rules = {}
    for seen, name in enumerate(names):
        ways = ['""'] if after is None else []
        ways.append(f"{one_of(others, negated=True)} {names[0]}")
        for char in others:
            reached = _overlap(marker, marker[:seen] + char)
            if reached < len(marker):
                ways.append(f"{one_of(char)} {names[reached]}")
            elif after is not None:
                ways.append(f"{one_of(char)} {after}")
        rules[name] = " | ".join(ways)
    return rules


def _overlap(marker: str, text: str) -> int:
    """How much of the marker's beginning the text ends with."""
    return next(size for size in range(min(len(marker), len(text)), -1, -1) if text.endswith(marker[:size]))
