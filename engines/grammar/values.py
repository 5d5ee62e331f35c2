"""Rules for the JSON values that satisfy a schema.

Invariant: what a rule admits is JSON, with at most one space after a colon or comma and nowhere else, and has no part that can
grow for ever but strings, arrays and maps that the schema leaves open.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.grammar.budget import Budget, SchemaError
from engines.grammar.cases import Cases, Schema, fits, kinds
from engines.grammar.text import decimals, integers, listed, literal, times

COLON, COMMA = '":" s', '"," s'
_SHARED: Mapping[str, str] = {
    "s": '" "?',
    "char": r'[^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] hex hex hex | [dD] [0-7] hex hex))',
    "hex": "[0-9a-fA-F]",
    "string": r'"\"" char* "\""',
    "natural": '"0" | [1-9] [0-9]{0,18}',
    "integer": '"0" | "-"? [1-9] [0-9]{0,18}',
    "fraction": '("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "number": '"-"? natural fraction',
    "decimals": '("." [0-9]{1,16})?',
    "zeros": '("." [0]{1,16})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
}
_ANY_DEPTH = 5
_CHAR, _VALUE, _BODY_CHARS, _RULE = 1, 3, 16, 20  # units of work, and characters of a body a unit


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a grammar may be. `repeat` is the highest repetition that is put into it, since each costs as many rules;
    `repeats` bounds their sum, `cases` the combinations of alternatives at one place, `depth` the nesting, `work` what making it
    may cost."""

    depth: int = 32
    rules: int = 4000
    text: int = 256 * 1024
    repeat: int = 256
    repeats: int = 20_000
    cases: int = 128
    work: int = 300_000


class Rules:
    """The rules of one grammar. Equal bodies have one name."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.budget = Budget(limits.work)
        self._any: dict[int, str] = {}
        self._bodies: dict[str, str] = dict(_SHARED)
        self._names: dict[str, str] = {}
        self._count = self._size = self._repeats = 0

    def new_name(self) -> str:
        """A name that no rule has."""
        self._count += 1
        if self._count > self.limits.rules:
            raise SchemaError(f"its grammar has more than {self.limits.rules} rules")
        return f"r{self._count}"

    def json_literal(self, value: object) -> str:
        """Exactly this value's JSON."""
        text = self.budget.json(value).decode()
        self.budget.spend(len(text) // _BODY_CHARS if text.isprintable() else len(text) * _CHAR)
        return literal(text)

    def put(self, name: str, body: str) -> None:
        """Writes a rule."""
        self._size += len(body)
        if self._size > self.limits.text:
            raise SchemaError(f"its grammar is longer than {self.limits.text} characters")
        self._bodies[name] = body

    def add(self, body: str) -> str:
        """The name of a rule with this body."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self.new_name()
            self.put(name, body)
        return name

    def bounds(self, low: int, high: int | None) -> tuple[int, int | None]:
        """The bounds of a repetition, as far as a grammar can afford them."""
        if high is not None and high < low:
            raise SchemaError("a part of it admits no value")
        limit = self.limits.repeat
        low, high = min(low, limit), high if high is not None and high <= limit else None
        self._repeats += low if high is None else high
        if self._repeats > self.limits.repeats:
            raise SchemaError(f"its repetitions come to more than {self.limits.repeats}")
        return low, high

    def any_value(self, depth: int = _ANY_DEPTH) -> str:
        """Any JSON value, nested at most `depth` deep, so that it comes to an end."""
        if depth not in self._any:
            body = "string | number | boolean | null"
            if depth:
                inner = self.any_value(depth - 1)
                members = _members("{", f"string {COLON} {inner}", "}", 0, None), _members("[", inner, "]", 0, None)
                body = " | ".join((body, *members))
            self._any[depth] = self.add(body)
        return self._any[depth]

    def text(self, root: str) -> str:
        """The grammar, from the body of its root."""
        return "".join(f"{name} ::= {body}\n" for name, body in {"root": root, **self._bodies}.items())


class Values:
    """Rules for the schemas of one document, which its references point into."""

    def __init__(self, rules: Rules, document: Schema) -> None:
        self._rules = rules
        self._cases = Cases(document, rules.limits.cases, rules.budget)
        self._known: dict[bytes, str] = {}
        self._depth = 0

    def rule(self, schema: object) -> str:
        """The name of the rule for this schema. It is known before its body is, so that a schema may hold itself."""
        if schema is True or schema == {}:
            return self._rules.any_value()
        budget = self._rules.budget
        budget.spend(_RULE)
        key = budget.json(schema)
        if (known := self._known.get(key)) is not None:
            return known
        name = self._known[key] = self._rules.new_name()
        self._depth += 1
        if self._depth > self._rules.limits.depth:
            raise SchemaError(f"it is nested more than {self._rules.limits.depth} deep")
        bodies = [body for case in self._cases.of(schema) for body in self._paid(self._case(case))]
        if not bodies:
            raise SchemaError("a part of it admits no value")
        self._rules.put(name, " | ".join(dict.fromkeys(bodies)))
        self._depth -= 1
        return name

    def _paid(self, bodies: list[str]) -> list[str]:
        self._rules.budget.spend(sum(map(len, bodies)) // _BODY_CHARS)
        return bodies

    def _case(self, case: Schema) -> list[str]:
        if "enum" in case:
            self._rules.budget.spend(len(case["enum"]) * _VALUE)
            return [self._rules.json_literal(value) for value in case["enum"] if fits(value, case.get("type"))]
        types = kinds(case)
        if types is None:
            return [self._rules.any_value()]
        return [body for kind in types for body in self._typed(kind, case)]

    def _typed(self, kind: str, case: Schema) -> Sequence[str]:
        match kind:
            case "object":
                return [self._object(case)]
            case "array":
                return [self._array(case)]
            case "string":
                return [self._string(case)]
            case "integer" | "number":
                ways = integers(*_whole_bounds(case)) if kind == "integer" else decimals(*_outer_bounds(case))
                self._rules.budget.spend(sum(map(len, ways)) * _CHAR)
                return ways
        return [kind]

    def _string(self, case: Schema) -> str:
        low, high = self._rules.bounds(case.get("minLength", 0), case.get("maxLength"))
        if (low, high) == (0, None):
            return "string"
        return literal('""') if high == 0 else rf'"\"" char{times(low, high)} "\""'

    def _array(self, case: Schema) -> str:
        """The places that `prefixItems` names are all filled, then come those of `items`."""
        low, high = self._rules.bounds(case.get("minItems", 0), case.get("maxItems"))
        items = case.get("items", True)
        placed = list(case.get("prefixItems", ()))[:high]
        if items is False:
            high = len(placed)
        if high == 0:
            return literal("[]")
        if not placed:
            return _members("[", self.rule(items), "]", low, high)
        parts = f" {COMMA} ".join(self.rule(schema) for schema in placed)
        low, high = max(low - len(placed), 0), None if high is None else high - len(placed)
        wanted = low > 0 or ("items" in case and high != 0)
        more = f" ({COMMA} {self.rule(items)}){times(low, high)}" if wanted else ""
        return f'"[" {parts}{more} "]"'

    def _object(self, case: Schema) -> str:
        properties: Mapping[str, Any] = case.get("properties", {})
        required = dict.fromkeys(case.get("required", ()))
        extra = case.get("additionalProperties", True)
        if "properties" not in case and not required:
            return self._map(case, extra)
        self._rules.budget.spend((len(properties) + len(required)) * _VALUE)
        fields = {**properties, **{name: extra for name in required if name not in properties}}
        pairs = [
            (self._rules.add(f"{self._rules.json_literal(name)} {COLON} {self.rule(schema)}"), name in required)
            for name, schema in fields.items()
            if schema is not False or name in required
        ]
        return f'"{{" {self._fields(pairs)} "}}"' if pairs else literal("{}")

    def _fields(self, pairs: Sequence[tuple[str, bool]]) -> str:
        """Required and optional pairs in their order, with commas just between those that are there."""
        first = next((place for place, (_, required) in enumerate(pairs) if required), None)
        if first is not None:
            before = [f"({pair} {COMMA})?" for pair, _ in pairs[:first]]
            after = [f"{COMMA} {pair}" if required else f"({COMMA} {pair})?" for pair, required in pairs[first + 1 :]]
            return " ".join([*before, pairs[first][0], *after])
        ways: list[str] = []
        after_it = ""
        for pair, _ in reversed(pairs):
            ways.append(f"{pair} {after_it}".rstrip())
            after_it = self._rules.add(f"({COMMA} {pair})? {after_it}".rstrip())
        return f"({' | '.join(reversed(ways))})?"

    def _map(self, case: Schema, extra: object) -> str:
        """An object that declares no properties: any keys, with values of one schema."""
        schema = next(iter(case.get("patternProperties", {}).values()), extra)
        low, high = self._rules.bounds(case.get("minProperties", 0), case.get("maxProperties"))
        if schema is False or high == 0:
            return literal("{}")
        return _members("{", f"string {COLON} {self.rule(schema)}", "}", low, high)


def _members(opener: str, member: str, closer: str, low: int, high: int | None) -> str:
    return f"{literal(opener)} {listed(member, COMMA, low, high)} {literal(closer)}"


def _whole_bounds(case: Schema) -> tuple[int | None, int | None]:
    """The least and the greatest integer that the bounds allow."""
    lows = [math.ceil(case["minimum"])] if "minimum" in case else []
    lows += [math.floor(case["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in case else []
    highs = [math.floor(case["maximum"])] if "maximum" in case else []
    highs += [math.ceil(case["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in case else []
    return max(lows, default=None), min(highs, default=None)


def _outer_bounds(case: Schema) -> tuple[int | None, int | None]:
    """The closest integers that no number of the case lies beyond."""
    lows = [math.floor(case[keyword]) for keyword in ("minimum", "exclusiveMinimum") if keyword in case]
    highs = [math.ceil(case[keyword]) for keyword in ("maximum", "exclusiveMaximum") if keyword in case]
    return max(lows, default=None), min(highs, default=None)
