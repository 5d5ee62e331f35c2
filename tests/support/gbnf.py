"""A reader of GBNF of its own: says whether a text is in a grammar's language, and draws random texts from it.

It knows nothing of how the grammars under test are made, so that both can be wrong only apart. That the engine reads them in the
same way is for the tests with the real engine.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z][A-Za-z0-9_-]*|::=|\{\d+(?:,\d*)?\}|[|()*+?]|\n')
_CODE = re.compile(r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_PALETTE = 'ab Z09{}[],:"\\<>/-.eEtfn_éß🦙\n'
_DEPTH = 40


@dataclass(frozen=True)
class Class:
    """One character out of ranges, or one out of none of them."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def holds(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) is not self.negated

    def draw(self, chance: random.Random) -> str:
        if self.negated:
            return chance.choice([char for char in _PALETTE if self.holds(char)])
        low, high = chance.choice(self.ranges)
        return chr(chance.randint(ord(low), ord(high)))


Element = Class | str
Sequence = tuple[Element, ...]
Stack = tuple[Sequence, "Stack"] | None


def _chars(text: str) -> list[str]:
    def one(found: re.Match[str]) -> str:
        byte, four, eight, named, plain = found.groups()
        code = byte or four or eight
        return chr(int(code, 16)) if code else plain if plain is not None else _NAMED.get(named, named)

    return [one(found) for found in _CODE.finditer(text)]


def _class(text: str) -> Class:
    """An escaped hyphen is a character, a bare one between two others makes a range."""
    negated = text.startswith("^")
    units = [found[0] for found in _CODE.finditer(text.removeprefix("^"))]
    ranges = []
    while units:
        low = high = _chars(units.pop(0))[0]
        if len(units) >= 2 and units[0] == "-":
            high = _chars(units[1])[0]
            del units[:2]
        ranges.append((low, high))
    return Class(tuple(ranges), negated)


@dataclass
class Grammar:
    """A grammar's rules, groups and repetitions made rules of their own."""

    rules: dict[str, list[Sequence]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> "Grammar":
        grammar = cls()
        for line in text.splitlines():
            name, _, body = line.partition(" ::= ")
            tokens = _TOKEN.findall(body)
            assert "".join(tokens) == "".join(_TOKEN.findall(body))
            assert re.sub(_TOKEN, "", body).strip() == "", f"unreadable: {line}"
            assert name not in grammar.rules
            grammar.rules[name] = grammar._alternatives(tokens)
            assert not tokens
        for name, alternatives in grammar.rules.items():
            for element in (one for sequence in alternatives for one in sequence):
                assert isinstance(element, Class) or element in grammar.rules, f"{name} names {element}"
        return grammar

    def _alternatives(self, tokens: list[str]) -> list[Sequence]:
        alternatives: list[Sequence] = [()]
        while tokens and tokens[0] != ")":
            token = tokens.pop(0)
            if token == "|":
                alternatives.append(())
                continue
            unit = self._unit(token, tokens)
            if tokens and tokens[0][0] in "*+?{":
                unit = (self._repeated(unit, tokens.pop(0)),)
            alternatives[-1] += unit
        return alternatives

    def _unit(self, token: str, tokens: list[str]) -> Sequence:
        if token == "(":
            name = self._name([*self._alternatives(tokens)])
            assert tokens.pop(0) == ")"
            return (name,)
        if token[0] == '"':
            return tuple(Class(((char, char),)) for char in _chars(token[1:-1]))
        return (_class(token[1:-1]),) if token[0] == "[" else (token,)

    def _repeated(self, unit: Sequence, sign: str) -> str:
        low, _, high = {"*": "0,", "+": "1,", "?": "0,1"}.get(sign, sign.strip("{}")).partition(",")
        if sign[0] == "{" and "," not in sign:
            high = low
        if high:
            rest: Sequence = ()
            for _ in range(int(high) - int(low)):
                rest = (self._name([(*unit, *rest), ()]),)
        else:
            loop = self._name([])
            self.rules[loop] = [(*unit, loop), ()]
            rest = (loop,)
        return self._name([(*unit * int(low), *rest)])

    def _name(self, alternatives: list[Sequence]) -> str:
        name = f" {len(self.rules)}"
        self.rules[name] = alternatives
        return name

    def accepts(self, text: str, *, part: bool = False) -> bool:
        """Whether the text, or with `part` a text that begins like it, is in the language."""
        states = set(self._open((("root",), None)))
        for char in text:
            after: set[Stack] = set()
            for state in states:
                if state is not None:
                    (first, *rest), below = state
                    if isinstance(first, Class) and first.holds(char):
                        after.update(self._open((tuple(rest), below)))
            states = after
        return bool(states) if part else None in states

    def _open(self, stack: Stack) -> Iterator[Stack]:
        """The stacks that this one means whose next element is a character."""
        if stack is None:
            yield None
            return
        sequence, below = stack
        if not sequence:
            yield from self._open(below)
        elif isinstance(sequence[0], Class):
            yield stack
        else:
            rest: Stack = (sequence[1:], below) if sequence[1:] else below
            for alternative in self.rules[sequence[0]]:
                yield from self._open((alternative, rest))

    def draw(self, chance: random.Random) -> str:
        """A random text of the language."""
        return self._draw("root", chance, self._heights(), 0)

    def _draw(self, element: Element, chance: random.Random, heights: dict[str, int], depth: int) -> str:
        if isinstance(element, Class):
            return element.draw(chance)
        ways = self.rules[element]
        if depth > _DEPTH:
            ways = [min(ways, key=lambda way: max((heights[one] for one in way if isinstance(one, str)), default=0))]
        return "".join(self._draw(one, chance, heights, depth + 1) for one in chance.choice(ways))

    def _heights(self) -> dict[str, int]:
        """How deep each rule is at least."""
        heights = dict.fromkeys(self.rules, 10**6)
        while True:
            before = dict(heights)
            for name, ways in self.rules.items():
                heights[name] = 1 + min(max((heights[one] for one in way if isinstance(one, str)), default=0) for way in ways)
            if heights == before:
                return heights
