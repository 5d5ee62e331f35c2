"""What it costs at worst to fill a text's fields: `%`, the filter `format` and the method of that name."""

import re
from string import Formatter
from typing import Any

from gateway.prompt.budget import Budget, OverBudget, markup_growth

# %(key)-5.2f: the key, the width, the precision and the letter, each read as Python reads it.
_PERCENT = re.compile(r"%(?:\(([^()]*)\))?[-#0 +]*(\d*)(?:\.(\d*))?[hlL]?(.?)", re.DOTALL)


def percent(budget: Budget, text: str, values: Any) -> None:
    """Before `text % values`."""
    fields, wide = 1, 0
    for match in _PERCENT.finditer(text):
        fields += match[1] is not None
        wide += _field(budget, match[2]) + _field(budget, match[3])
        if match[4] in ("(", "*"):
            raise OverBudget("a format string has a field of unbounded width")
    _formatted(budget, text, fields, wide, values)


def percent_filter(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Before `value | format`."""
    if not isinstance(value, str):
        raise TypeError("format needs a text")
    percent(budget, value, [args, kwargs])


def format_method(budget: Budget, text: str, *args: Any, **kwargs: Any) -> None:
    """Before `text.format`."""
    fields, wide = 1, 0
    budget.step(1 + len(text))  # Python's formatter takes a microsecond a field
    for _, name, spec, _ in Formatter().parse(text):
        if spec and "{" in spec:
            raise OverBudget("a format string has a field of unbounded width")
        fields += bool(name)
        wide += sum(_field(budget, number) for number in re.findall(r"\d+", spec or ""))
    _formatted(budget, text, fields, wide, [args, kwargs])


def _field(budget: Budget, digits: str | None) -> int:
    """A width or a precision."""
    if digits and (len(digits) > 9 or int(digits) > budget.limits.padding):
        raise OverBudget("a format string has a field of unbounded width")
    return int(digits or 0)


def _formatted(budget: Budget, text: str, fields: int, wide: int, values: Any) -> None:
    """`fields` are those that name their value, and so may each write the largest; one more for the rest together."""
    budget.fit((budget.text(text) + wide + fields * budget.text(values)) * markup_growth(text))
