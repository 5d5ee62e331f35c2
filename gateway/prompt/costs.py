"""The filters, tests and methods that chat templates may use, and what each costs at worst. What is not here is refused.

A cost is a function that takes the budget, the value, and then the very parameters of what it stands before, so that names and
defaults are bound as there; it counts the work and the size of the result, or raises. `None` stands for one step, whatever the
value.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from gateway.prompt.budget import ESCAPED, OVERHEAD_BYTES, Budget, OverBudget, markup_growth, text_bytes
from gateway.prompt.format_costs import format_method, percent_filter

Cost = Callable[..., None]

MAX_JSON_SPACING: Final = 16
MAX_NUMBER_CHARS: Final = 1_000
MAX_NAME_CHARS: Final = 200
_MAX_PRECISION = 400
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _text(budget: Budget, value: Any) -> None:
    budget.text(value)


def _escape(budget: Budget, value: Any) -> None:
    budget.fit(ESCAPED * budget.text(value))


def _padded(budget: Budget, text: Any, width: Any, fillchar: Any = " ") -> None:
    budget.text(text)
    _check_padding(budget, width)


def _check_padding(budget: Budget, *widths: Any) -> None:
    if any(isinstance(width, int) and abs(width) > budget.limits.padding for width in widths):
        raise OverBudget(f"it is asked to fill more than {budget.limits.padding} places")


def _number(budget: Budget, value: Any, default: Any = 0, base: Any = 10) -> None:
    if isinstance(value, str) and len(value) > MAX_NUMBER_CHARS:
        raise OverBudget(f"it reads a number of more than {MAX_NUMBER_CHARS} characters")
    budget.step()


def _round(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if isinstance(precision, int) and abs(precision) > _MAX_PRECISION:
        raise OverBudget(f"it rounds to more than {_MAX_PRECISION} digits")
    budget.step()


def _divisible(budget: Budget, value: Any, num: Any = 2) -> None:
    if isinstance(value, str):
        raise TypeError("a text cannot be divided")
    budget.step()


# Filters.


def _items(budget: Budget, value: Any) -> None:
    budget.step(1 + (len(value) // 8 if isinstance(value, Collection) else 0))


def _listed(budget: Budget, value: Any) -> None:
    budget.few(len(value) if isinstance(value, Collection) else 0)
    _items(budget, value)


def _name(value: Any) -> None:
    """The name of an attribute, a filter or a test: the budget's own begin with a blank."""
    if value is None or (isinstance(value, int) and value.bit_length() < 64):
        return
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or value.startswith(" "):
        raise OverBudget(f"a name is not a text of up to {MAX_NAME_CHARS} characters")


def _selected(budget: Budget, value: Any, name: Any = None, *args: Any, **kwargs: Any) -> None:
    _name(name)
    _items(budget, value)


def _selected_by(budget: Budget, value: Any, attribute: Any, name: Any = None, *args: Any, **kwargs: Any) -> None:
    _name(attribute)
    _selected(budget, value, name)


def _mapped(budget: Budget, value: Any, name: Any = None, *args: Any, attribute: Any = None, **kwargs: Any) -> None:
    _name(attribute)
    _selected(budget, value, name)


def _ordered(budget: Budget, value: Any, *, rounds: bool = True) -> None:
    if isinstance(value, Collection):
        budget.sort(value, rounds=rounds)


def _dictsort(budget: Budget, value: Any, case_sensitive: Any = False, by: Any = "key", reverse: Any = False) -> None:
    _ordered(budget, value.items() if isinstance(value, dict) else value)


def _sort(budget: Budget, value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None) -> None:
    _name(attribute)
    _ordered(budget, value)


def _extreme(budget: Budget, value: Any, case_sensitive: Any = False, attribute: Any = None) -> None:
    _name(attribute)
    _ordered(budget, value, rounds=False)


def _sum(budget: Budget, iterable: Any, attribute: Any = None, start: Any = 0) -> None:
    _name(attribute)
    if not isinstance(start, int | float):
        raise OverBudget("sum adds numbers only")
    budget.read(iterable)


def _join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    _name(attribute)
    _joined(budget, d, value, OVERHEAD_BYTES)


def _joined(budget: Budget, text: Any, iterable: Any, item_bytes: int = 0) -> None:
    size, between = budget.text(iterable), budget.text(text)
    many = len(iterable) if isinstance(iterable, Collection) else 0
    budget.fit((size + many * (between + item_bytes)) * markup_growth(text))


def _replace(budget: Budget, s: Any, old: Any, new: Any, count: Any = None) -> None:
    """Numbers and lists are made texts first."""
    size, part, into = budget.text(s), budget.text(old), budget.text(new)
    if isinstance(s, str) and isinstance(old, str):
        budget.search(s, old)
        budget.search(s, old)
        times = s.count(old)
    else:
        times = size + 1
        budget.step(size * part // 256)
    budget.fit((size + times * into) * markup_growth(s))


def _indent(budget: Budget, s: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    _check_padding(budget, width)
    wide = budget.text(width) if isinstance(width, str) else abs(width) if isinstance(width, int) else 0
    size = budget.text(s)
    lines = _lines(budget, s) if isinstance(s, str) else 0
    budget.fit((size + lines * (wide + 1)) * markup_growth(s, width))


def _lines(budget: Budget, text: str) -> int:
    """How many lines it has; counts the list of them."""
    budget.search(text, "\n")
    return _parts(budget, text, 2 + sum(map(text.count, _LINE_ENDS)))


def _parts(budget: Budget, text: str, parts: int) -> int:
    """Counts the list of a text's parts; their number."""
    budget.copy(parts)
    budget.keep(text_bytes(text) + parts * OVERHEAD_BYTES)
    return parts


def _truncate(  # noqa: PLR0917  as Jinja has them
    budget: Budget, s: Any, length: Any = 255, killwords: Any = False, end: Any = "...", leeway: Any = None
) -> None:
    budget.fit(budget.text(s) + budget.text(end))


def _title(budget: Budget, s: Any) -> None:
    budget.keep(budget.few(budget.text(s)) * OVERHEAD_BYTES)


def _tojson(  # noqa: PLR0917  as transformers has them
    budget: Budget,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> None:
    deep = None if indent is None else indent if isinstance(indent, int) else len(indent)
    wide = [len(text) for text in separators or ()]
    if any(size > MAX_JSON_SPACING for size in [deep or 0, *wide]):
        raise OverBudget(f"tojson is asked for spacing of more than {MAX_JSON_SPACING}")
    budget.text(value, sum(wide), None if deep is None else max(deep, 0))


# Methods of texts.


def _find(budget: Budget, text: str, sub: Any, start: Any = None, end: Any = None, /) -> None:
    budget.search(text, sub)


def _find_last(budget: Budget, text: str, sub: Any, start: Any = None, end: Any = None, /) -> None:
    budget.product(text, sub)


def _begins(budget: Budget, text: str, affix: Any, start: Any = None, end: Any = None, /) -> None:
    budget.read(affix)


def _affix(budget: Budget, text: str, affix: Any, /) -> None:
    budget.read(affix)


def _strip(budget: Budget, text: str, chars: Any = None, /) -> None:
    budget.product(text, chars)


def _trim(budget: Budget, value: Any, chars: Any = None) -> None:
    if isinstance(value, str):
        budget.product(value, chars)
    else:
        budget.step(budget.text(value) * (len(chars) if isinstance(chars, str) else 1) // 256)


def _partition(budget: Budget, text: str, sep: Any, /) -> None:
    budget.search(text, sep)
    _parts(budget, text, 3)


def _partition_last(budget: Budget, text: str, sep: Any, /) -> None:
    budget.product(text, sep)
    _parts(budget, text, 3)


def _split(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    if isinstance(sep, str):
        budget.search(text, sep)
        budget.search(text, sep)
        found = text.count(sep)
    else:
        budget.text(text)
        found = len(text) // 2
    _parts(budget, text, 1 + (min(found, maxsplit) if isinstance(maxsplit, int) and maxsplit >= 0 else found))


def _split_last(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    budget.product(text, sep)
    _split(budget, text, sep, maxsplit)


def _splitlines(budget: Budget, text: str, keepends: Any = False) -> None:
    _lines(budget, text)


def _replace_method(budget: Budget, text: str, old: Any, new: Any, count: Any = -1, /) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _replace(budget, text, old, new)


# Methods of dicts and lists.


def _get(budget: Budget, value: Any, key: Any, default: Any = None, /) -> None:
    budget.key(key)
    budget.step()


def _index(budget: Budget, value: Any, item: Any, start: Any = 0, stop: Any = 0, /) -> None:
    budget.contain(item, value)


# Functions.


def _dict(budget: Budget, pairs: Any = (), /, **names: Any) -> None:
    if isinstance(pairs, dict):
        budget.copy(len(pairs) + len(names))
    else:
        for key, _ in pairs:
            budget.step()
            budget.key(key)


def _refuse(budget: Budget, message: Any = "") -> None:
    budget.text(message)


def _date(budget: Budget, pattern: Any) -> None:
    if isinstance(pattern, str) and len(pattern) > MAX_NAME_CHARS:
        raise OverBudget(f"a date is written with more than {MAX_NAME_CHARS} characters")


# Tests.


def _compare(budget: Budget, value: Any, other: Any) -> None:
    budget.compare(value, other)


def _contain(budget: Budget, value: Any, seq: Any) -> None:
    budget.contain(value, seq)


FILTERS: Mapping[str, Cost | None] = {
    **dict.fromkeys(("abs", "count", "d", "default", "first", "last", "length"), None),
    **dict.fromkeys(("capitalize", "lower", "safe", "string", "upper"), _text),
    **dict.fromkeys(("e", "escape"), _escape),
    **dict.fromkeys(("float", "int"), _number),
    **dict.fromkeys(("max", "min"), _extreme),
    **dict.fromkeys(("reject", "select"), _selected),
    **dict.fromkeys(("rejectattr", "selectattr"), _selected_by),
    "dictsort": _dictsort,
    "format": percent_filter,
    "indent": _indent,
    "items": _items,
    "join": _join,
    "list": _listed,
    "map": _mapped,
    "replace": _replace,
    "reverse": _listed,
    "round": _round,
    "sort": _sort,
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
}
TESTS: Mapping[str, Cost | None] = {
    **dict.fromkeys(("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "mapping"), None),
    **dict.fromkeys(("none", "number", "sameas", "sequence", "string", "true", "undefined"), None),
    **dict.fromkeys(("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt"), _compare),
    **dict.fromkeys(("le", "lessthan", "lt", "ne"), _compare),
    **dict.fromkeys(("divisibleby", "even", "odd"), _divisible),
    **dict.fromkeys(("lower", "upper"), _text),
    "in": _contain,
}
GLOBALS: Mapping[str, Cost] = {"dict": _dict, "namespace": _dict, "raise_exception": _refuse, "strftime_now": _date}
_SEQUENCE: Mapping[str, Cost | None] = {"count": _index, "index": _index}
METHODS: Mapping[type, Mapping[str, Cost | None]] = {
    str: {
        **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "title", "upper"), _text),
        **dict.fromkeys(("isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper"), _text),
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
        **dict.fromkeys(("count", "find", "index"), _find),
        **dict.fromkeys(("rfind", "rindex"), _find_last),
        **dict.fromkeys(("startswith", "endswith"), _begins),
        **dict.fromkeys(("removeprefix", "removesuffix"), _affix),
        **dict.fromkeys(("lstrip", "rstrip", "strip"), _strip),
        "format": format_method,
        "join": _joined,
        "partition": _partition,
        "replace": _replace_method,
        "rpartition": _partition_last,
        "rsplit": _split_last,
        "split": _split,
        "splitlines": _splitlines,
    },
    dict: {"get": _get, **dict.fromkeys(("items", "keys", "values"), None)},
    list: _SEQUENCE,
    tuple: _SEQUENCE,
}


def methods_of(value: object) -> Mapping[str, Cost | None] | None:
    """Of a text, dict, list or tuple; nothing for another value."""
    return METHODS.get(str if isinstance(value, str) else type(value))
