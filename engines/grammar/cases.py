"""A JSON Schema taken apart into cases: plain schemas without references or combinations, any of which a value may satisfy.

Invariant: a value that satisfies one case satisfies all that these schemas say in the keywords of `_CHECKS`; other keywords are
dropped. Any JSON value as a schema gives cases or `SchemaError`, and all work is paid for.
"""

from collections.abc import Callable, Mapping, Sequence
from reprlib import Repr
from typing import Any
from urllib.parse import unquote

from engines.grammar.budget import Budget, SchemaError
from gateway.errors import shown

Schema = Mapping[str, Any]
_TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
_MAX_NESTED = 64
_STEP, _PAIR, _MEMBER = 30, 30, 3  # units of work
_BRIEF = Repr()
_BRIEF.maxlevel = 2


class Cases:
    """The cases of schemas of one document, which references point into."""

    def __init__(self, document: Schema, max_cases: int, budget: Budget) -> None:
        self._document = document
        self._max_cases = max_cases
        self._budget = budget
        self._known: dict[tuple[int, tuple[str, ...]], tuple[object, Sequence[Schema]]] = {}

    def of(self, schema: object, seen: tuple[str, ...] = (), nested: int = 0) -> Sequence[Schema]:
        """The cases; none where no value satisfies it. A reference back to itself adds nothing to an alternative."""
        self._budget.spend(_STEP)
        if nested > _MAX_NESTED:
            raise SchemaError("its references and combinations are nested too deep")
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, Mapping):
            raise SchemaError(f"{_BRIEF.repr(schema)} is not a schema")
        place = (id(schema), seen)
        if place not in self._known:
            self._known[place] = (schema, self._of(schema, seen, nested))  # kept, so that its id stays its own
        return self._known[place][1]

    def _of(self, schema: Schema, seen: tuple[str, ...], nested: int) -> Sequence[Schema]:
        cases: Sequence[Schema] = [_plain(schema, self._budget)]
        if (ref := schema.get("$ref")) is not None:
            target = [] if ref in seen else self.of(self._resolved(ref), (*seen, ref), nested + 1)
            cases = self._product(cases, target)
        for part in _schemas(schema, "allOf"):
            cases = self._product(cases, self.of(part, seen, nested + 1))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                options = [case for part in _schemas(schema, keyword) for case in self.of(part, seen, nested + 1)]
                cases = self._product(cases, options)
        return cases

    def _product(self, left: Sequence[Schema], right: Sequence[Schema]) -> Sequence[Schema]:
        if len(left) * len(right) > self._max_cases:
            raise SchemaError(f"its alternatives combine to more than {self._max_cases}")
        return [both for one in left for other in right if (both := _merged(one, other, self._budget)) is not None]

    def _resolved(self, ref: object) -> object:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise SchemaError(f"the reference {_BRIEF.repr(ref)} does not point into the schema itself")
        self._budget.spend(len(ref) * _MEMBER)
        found: Any = self._document
        for step in unquote(ref).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list | tuple) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise SchemaError(f"the reference {shown(ref)} points to nothing")
        return found


def kinds(case: Schema) -> tuple[str, ...] | None:
    """The types of a case's values; without `type`, the one that its keywords speak of; None where it says nothing."""
    types: tuple[str, ...] | None = case.get("type")
    if types is not None:
        return tuple(kind for kind in types if kind != "integer" or "number" not in types)
    return next(((kind,) for kind, words in _SPOKEN_OF.items() if not words.isdisjoint(case)), None)


def fits(value: object, types: Sequence[str] | None) -> bool:
    """Whether a JSON value is of one of these types."""
    if types is None:
        return True
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return "integer" in types or "number" in types
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case str():
            return "string" in types
        case Mapping():
            return "object" in types
    return "array" in types


def _schemas(schema: Schema, keyword: str) -> Sequence[object]:
    parts = schema.get(keyword, ())
    if not isinstance(parts, list | tuple):
        raise SchemaError(f"'{keyword}' is not a list")
    return parts


def _plain(schema: Schema, budget: Budget) -> Schema:
    """The keywords that a grammar can use, checked and in one spelling each."""
    budget.spend(len(schema) * _MEMBER)
    case: dict[str, Any] = {}
    for keyword, value in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None:
            budget.spend(_size(value))
            checked = check(value)
            if checked is None:
                raise SchemaError(f"'{keyword}' cannot be {_BRIEF.repr(value)}")
            case[keyword] = checked
    if "const" in schema:
        case["enum"] = _shared(case.get("enum", [schema["const"]]), [schema["const"]], budget)
    if isinstance(case.get("items"), list):  # the older spelling of prefixItems
        case["prefixItems"] = case.pop("items")
        if "additionalItems" in schema:
            case["items"] = schema["additionalItems"]
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(case.get(keyword), bool):  # the oldest spelling; the bound itself stays
            del case[keyword]
    return case


def _size(value: object) -> int:
    return len(value) if isinstance(value, Mapping | list | tuple) else 1


def _merged(left: Schema, right: Schema, budget: Budget) -> Schema | None:
    """What satisfies both; None where nothing does."""
    budget.spend(_PAIR)
    both = dict(left)
    for keyword, value in right.items():
        if keyword in both:
            budget.spend((_size(both[keyword]) + _size(value)) * _MEMBER)
            both[keyword] = _JOINS[keyword](both[keyword], value, budget)
        else:
            both[keyword] = value
    return None if both.get("type") == () or both.get("enum") == [] else both


def _both(left: Any, right: Any, budget: Budget) -> Any:
    if left is True or left is right:
        return right
    if right is True:
        return left
    if left is False or right is False:
        return False
    return right if budget.json(left) == budget.json(right) else {"allOf": [left, right]}


def _by_name(left: Mapping[str, Any], right: Mapping[str, Any], budget: Budget) -> Mapping[str, Any]:
    joined = {name: _both(left[name], schema, budget) if name in left else schema for name, schema in right.items()}
    return {**left, **joined}


def _by_place(left: Sequence[Any], right: Sequence[Any], budget: Budget) -> Sequence[Any]:
    longer = left if len(left) > len(right) else right
    joined = [_both(one, other, budget) for one, other in zip(left, right, strict=False)]
    return joined + list(longer[len(joined) :])


def _types_of_both(left: tuple[str, ...], right: tuple[str, ...], _budget: Budget) -> tuple[str, ...]:
    wider = {*left, *(("integer",) if "number" in left else ())}
    other = {*right, *(("integer",) if "number" in right else ())}
    return tuple(kind for kind in _TYPES if kind in wider and kind in other)


def _shared(left: Sequence[Any], right: Sequence[Any], budget: Budget) -> Sequence[Any]:
    """The values in both."""
    keys = {budget.key(value) for value in right}
    return [value for value in left if budget.key(value) in keys]


def _names_of_both(left: Sequence[str], right: Sequence[str], _budget: Budget) -> Sequence[str]:
    return tuple(dict.fromkeys((*left, *right)))


def _highest(left: Any, right: Any, _budget: Budget) -> Any:
    return max(left, right)


def _lowest(left: Any, right: Any, _budget: Budget) -> Any:
    return min(left, right)


def _types(value: object) -> tuple[str, ...] | None:
    types = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    return tuple(dict.fromkeys(types)) if types and all(kind in _TYPES for kind in types) else None


def _count(value: object) -> int | None:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and int(value) == value
    return int(value) if whole else None  # type: ignore[call-overload]  # `whole` is of numbers only


def _number(value: object) -> object:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number_or_flag(value: object) -> object:
    return value if isinstance(value, int | float) else None


def _object(value: object) -> object:
    return value if isinstance(value, Mapping) else None


def _list(value: object) -> object:
    return value if isinstance(value, list | tuple) else None


def _names(value: object) -> object:
    return value if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value) else None


def _schema(value: object) -> object:
    return value if isinstance(value, bool | Mapping | list) else None


_CHECKS: Mapping[str, Callable[[object], object]] = {
    "type": _types,
    "enum": _list,
    "properties": _object,
    "patternProperties": _object,
    "required": _names,
    "additionalProperties": _schema,
    "items": _schema,
    "prefixItems": _list,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _number_or_flag),
}
_JOINS: Mapping[str, Callable[[Any, Any, Budget], Any]] = {
    "type": _types_of_both,
    "enum": _shared,
    "required": _names_of_both,
    **dict.fromkeys(("properties", "patternProperties"), _by_name),
    **dict.fromkeys(("additionalProperties", "items"), _both),
    "prefixItems": _by_place,
    **dict.fromkeys(("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"), _highest),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"), _lowest),
}
_SPOKEN_OF: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"}
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
}
