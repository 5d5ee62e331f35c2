"""What a tool's JSON Schema says about its parameters: their types, and whether finished arguments fit.

Invariant: a client's schema never raises here, whatever it holds, and nothing is fetched. One that cannot be checked (invalid,
with remote references) misses nothing; its types are read as far as they can be. A part that says nothing allows every type.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from gateway.wire import jsonio

MAX_SCHEMA_BYTES = 1 << 18
_MAX_DEPTH = 24
_MAX_PARTS = 256  # looked through for each value that is nested in another
_MAX_VISITS = 2_000  # in all: shared references can make a small schema a large tree
_UNKNOWN = object()
_MAX_WEIGHT = 1_000_000  # a validator takes some ten nanoseconds for each
_PATTERN_WEIGHT = 10_000  # each is compiled, which takes up to a millisecond
_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1 << 16)
ALL_KINDS = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})


@dataclass(frozen=True, slots=True)
class Types:
    """The JSON types that a value may have. `strings` are those that the schema lists one by one."""

    kinds: frozenset[str]
    strings: frozenset[str] = frozenset()

    def fits(self, value: object) -> bool:
        """Whether a decoded value has one of the types."""
        return not self.kinds.isdisjoint(kinds_of(value))


ANY = Types(ALL_KINDS)


def kinds_of(value: object) -> frozenset[str]:
    """The JSON types of a decoded value: a whole number is an integer and a number."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case str():
            return frozenset({"string"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"}) if value.is_integer() else frozenset({"number"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


class Parameters:
    """One tool's parameters, resolved once."""

    __slots__ = ("_patterned", "_properties", "_reader", "_rest", "_schema", "_types", "_validator")

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._schema: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}
        self._reader = _TypeReader(self._schema)
        checkable = self._schema and _within_limits(self._schema)
        self._validator = _validator(self._schema, self._reader.resolve) if checkable else None
        self._types: dict[str, Types] = {}
        self._properties = self._reader.properties()
        self._patterned: tuple[tuple[jsonschema_rs.Validator, Any], ...] | None = None  # read when first needed
        rest = self._schema.get("additionalProperties", True)
        self._rest = rest if isinstance(rest, Mapping) else {}

    @property
    def validates(self) -> bool:
        """Whether the schema can be checked."""
        return self._validator is not None

    def accepts(self, arguments: str) -> bool:
        """Whether finished arguments satisfy the schema."""
        if self._validator is None:
            return True
        try:
            return self._validator.is_valid(jsonio.decode(arguments))
        except ValueError:  # a lone surrogate, or nested too deeply: no schema is satisfied
            return False

    def declares(self, key: str) -> bool:
        """Whether the schema names this parameter."""
        return key in self._properties

    def types(self, key: str) -> Types:
        """What this parameter may be."""
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = self._reader.read(self._part(key))
        return known

    def shape(self, key: str) -> "Shape":
        """What this parameter may be, and what is in it."""
        return Shape(self._reader, self._part(key))

    def _part(self, key: str) -> Any:
        """The schema of this parameter: the one by its name, else those whose pattern it matches, else that of all others."""
        if key in self._properties:
            return self._properties[key]
        if self._patterned is None:
            self._patterned = _patterned(self._schema) if self.validates else ()
        matched = [part for pattern, part in self._patterned if _matches(pattern, key)]
        if matched:
            return {"allOf": matched}
        return self._rest if self._patterned or not self._schema.get("patternProperties") else {}


class Shape:
    """A place in a schema, for formats whose values nest without saying their types."""

    __slots__ = ("_node", "_reader")

    def __init__(self, reader: "_TypeReader", node: Any) -> None:
        self._reader = reader
        self._node = node

    @property
    def types(self) -> Types:
        """What may stand here."""
        return self._reader.read(self._node)

    def member(self, name: str) -> "Shape":
        """Of an object here."""
        found = self._reader.members(self._node)
        return Shape(self._reader, found.get(name))

    @property
    def item(self) -> "Shape":
        """Of a list here."""
        return Shape(self._reader, next((each for each in self._reader.parts(self._node, "items")), None))


def _within_limits(schema: Mapping[str, Any]) -> bool:
    try:
        return len(jsonio.encode(schema)) <= MAX_SCHEMA_BYTES
    except (TypeError, ValueError, RecursionError, OverflowError):
        return False


def _with_null(node: Any) -> Any:
    """The schema with OpenAPI's `nullable` as JSON Schema says it."""
    if isinstance(node, list):
        return [_with_null(part) for part in node]
    if not isinstance(node, Mapping):
        return node
    result = {key: _with_null(part) for key, part in node.items()}
    if result.get("nullable") is True:
        if isinstance(result.get("type"), str | list):
            result["type"] = list({*(_list(result["type"]) or [result["type"]]), "null"})
        if isinstance(result.get("enum"), list):
            result["enum"] = [*result["enum"], None]
    return result


def _validator_of(schema: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS)


def _validator(schema: dict[str, Any], resolve: Callable[[Any], Any]) -> jsonschema_rs.Validator | None:
    try:
        if _Weight(schema, resolve).of_root > _MAX_WEIGHT:
            return None
        return _validator_of(_with_null(schema))
    except (ValueError, TypeError, RecursionError):
        return None


def _patterned(schema: Mapping[str, Any]) -> tuple[tuple[jsonschema_rs.Validator, Any], ...]:
    """The schemas for parameters whose names match a pattern; none where one cannot be read, which old drafts let pass. A pattern
    is a validator, which takes linear time, where Python's patterns may not."""
    patterned = schema.get("patternProperties", {})
    try:
        return tuple((_validator_of({"patternProperties": {pattern: False}}), part) for pattern, part in patterned.items())
    except ValueError:
        return ()


def _matches(pattern: jsonschema_rs.Validator, key: str) -> bool:
    try:
        return not pattern.is_valid({key: None})
    except ValueError:  # a lone surrogate
        return False


class _Weight:
    """How large a schema is with its references written out, since a validator walks all of that: shared references can make a
    small one endless. Each part is weighed once; one that holds itself counts there as one. Infinite where it cannot be said:
    a reference that is no path from the root."""

    def __init__(self, root: Mapping[str, Any], resolve: Callable[[Any], Any]) -> None:
        self._resolve = resolve
        self._known: dict[int, float] = {}
        self._bases = {"$id", "id"} if "draft-04" in str(root.get("$schema")) else {"$id"}
        self.of_root = 1 + _patterns(root) + sum(map(self._of, [*root.values(), *self._targets(root)]))

    def _of(self, node: Any) -> float:
        if not isinstance(node, Mapping | list):
            return math.inf if node is _UNKNOWN else 1
        known = self._known.get(id(node))
        if known is None:
            self._known[id(node)] = 1
            parts = node if isinstance(node, list) else [*node.values(), *self._targets(node)]
            moved = isinstance(node, Mapping) and any(isinstance(node.get(word), str) for word in self._bases)
            known = self._known[id(node)] = math.inf if moved else 1 + _patterns(node) + sum(map(self._of, parts))
        return known

    def _targets(self, node: Mapping[str, Any]) -> Iterator[Any]:
        for word in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(node.get(word), str):
                target = self._resolve(node[word])
                yield target if target is not None else _UNKNOWN


def _patterns(node: Any) -> int:
    """What the regular expressions of this part alone weigh."""
    if not isinstance(node, Mapping):
        return 0
    named = node.get("patternProperties")
    found = isinstance(node.get("pattern"), str) + (len(named) if isinstance(named, Mapping) else 0)
    return _PATTERN_WEIGHT * found


class _TypeReader:
    """Follows a schema's references and combinations, within a budget."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._visits = 0

    def properties(self) -> dict[str, Any]:
        """The named parameters. One that the root names, itself or behind a reference or an `allOf`, is only that; one that its
        options name is what any of them says."""
        surely: dict[str, Any] = {}
        for named in self.parts(self._root, "properties", ("allOf",)):
            if isinstance(named, Mapping):
                surely = {**named, **surely}
        return self.members(self._root) | surely

    def members(self, schema: Any) -> dict[str, Any]:
        """What an object of this schema may hold, whichever of its options it is."""
        found: dict[str, list[Any]] = {}
        for named in self.parts(schema, "properties"):
            for key, part in named.items() if isinstance(named, Mapping) else ():
                found.setdefault(key, []).append(part)
        return {key: parts[0] if len(parts) == 1 else {"anyOf": parts} for key, parts in found.items()}

    def parts(self, schema: Any, word: str, through: tuple[str, ...] = ("allOf", "anyOf", "oneOf")) -> Iterator[Any]:
        """What stands under this word in a schema, also behind references and combinations."""
        waiting: list[Any] = [schema]
        seen: set[int] = set()
        while waiting and len(seen) < _MAX_PARTS:
            node = waiting.pop()
            if not isinstance(node, Mapping) or id(node) in seen:
                continue
            seen.add(id(node))
            if word in node:
                yield node[word]
            waiting += [self.resolve(node.get("$ref")), *(part for each in through for part in _list(node.get(each)))]

    def read(self, schema: Any) -> Types:
        """The types that a schema allows."""
        self._visits = 0
        return self._read(schema, 0)

    def _read(self, schema: Any, depth: int) -> Types:
        self._visits += 1
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._visits > _MAX_VISITS:
            return ANY
        found = [_own_types(schema)]
        if isinstance(schema.get("$ref"), str):
            found.append(self._read(self.resolve(schema["$ref"]), depth + 1))
        found += [self._read(part, depth + 1) for part in _list(schema.get("allOf"))]
        for word in ("anyOf", "oneOf"):
            options = [self._read(part, depth + 1) for part in _list(schema.get(word))]
            if options:
                kinds = frozenset().union(*(option.kinds for option in options))
                found.append(Types(kinds, frozenset().union(*(option.strings for option in options))))
        kinds = ALL_KINDS.intersection(*(types.kinds for types in found))
        if schema.get("nullable") is True:
            kinds |= {"null"}
        return Types(kinds or ALL_KINDS, frozenset().union(*(types.strings for types in found)))

    def resolve(self, reference: Any) -> Any:
        """The schema at a local reference; None for any other."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        node: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(key)
            elif isinstance(node, list) and key.isdecimal() and len(key) < 6:
                node = node[int(key)] if int(key) < len(node) else None
            else:
                return None
        return node


def _own_types(schema: Mapping[str, Any]) -> Types:
    """The types that a schema names itself."""
    listed = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if listed:
        kinds = frozenset().union(*(kinds_of(value) for value in listed))
        return Types(kinds, frozenset(value for value in listed if isinstance(value, str)))
    declared = schema.get("type")
    kinds = frozenset(kind for kind in _list(declared) or [declared] if isinstance(kind, str)) & ALL_KINDS
    if "number" in kinds:
        kinds |= {"integer"}
    if not kinds and "type" not in schema:
        kinds |= {"object"} if "properties" in schema else set()
        kinds |= {"array"} if "items" in schema else set()
    return Types(kinds or ALL_KINDS)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
