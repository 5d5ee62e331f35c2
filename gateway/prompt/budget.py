"""What one render of an untrusted template may use: steps, seconds, characters, and the size of any one value.

Invariant: an operation that could make a value larger than its inputs together is checked before it runs. So a render ends after
at most `steps` steps with values of at most `value_chars` characters. What one step on such a value costs (a comparison, `in`, a
slice) is not counted: where a clock is given, steps that are slow are stopped after `wall_s`, give or take a few of them. A step
that does not end is stopped only in a process that can be killed: see `gateway.prompt.pool`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one render. `made_chars` is the sum over all strings made on the way, thrown away or not; `wall_s` are seconds.

    A render has `steps` and `message_steps` for each message: the costliest of 40 real templates takes 200 a message at 300.
    """

    wall_s: float = 2.0
    steps: int = 1_000_000
    message_steps: int = 2_000
    made_chars: int = 256_000_000
    value_chars: int = 16_000_000
    items: int = 1_000_000
    number_bits: int = 256
    padding: int = 10_000


class OverBudget(Exception):
    """The render would use more than its limits allow; the message says which."""


_STEPS_A_LOOK = 16  # at the clock: the slowest single step, on values of `value_chars`, takes some 20 ms
_WIDE_FIELD = re.compile(r"\d{5}|\*|\{[^{}]*\{")  # a width of five digits, or one taken from the arguments
_PADDED = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "batch", "slice"})
_TO_TEXT = frozenset(
    {"tojson", "string", "join", "format", "pprint", "upper", "lower", "trim", "replace", "urlencode", "xmlattr"}
)


class Budget:
    """The counters of one render. Without a clock, `seconds`, it may take as long as its steps take."""

    __slots__ = ("_chars", "_ends_s", "_limits", "_most_steps", "_seconds", "_steps", "_unlooked")

    def __init__(self, limits: Limits, messages: int = 0, seconds: Callable[[], float] | None = None) -> None:
        self._limits = limits
        self._steps = self._most_steps = limits.steps + messages * limits.message_steps
        self._chars = limits.made_chars
        self._seconds = seconds
        self._ends_s = seconds() + limits.wall_s if seconds is not None else 0.0
        self._unlooked = _STEPS_A_LOOK

    def step(self, cost: int = 1, chars: int = 0) -> None:
        """Counts work that is about to be done."""
        self._steps -= cost
        self._chars -= chars
        if self._steps < 0:
            raise OverBudget(f"it takes more than {self._most_steps} steps")
        if self._chars < 0:
            raise OverBudget(f"it makes more than {self._limits.made_chars} characters")
        self._unlooked -= 1
        if not self._unlooked:
            self._unlooked = _STEPS_A_LOOK
            if self._seconds is not None and self._seconds() > self._ends_s:
                raise OverBudget(f"it takes more than {self._limits.wall_s:g} s")

    def made(self, value: object) -> None:
        """Counts a new value."""
        match value:
            case str():
                self._fits(len(value))
            case list() | tuple() | dict():
                self._few(len(value))
                self.step(1 + len(value) // 8)
            case bool():
                pass
            case int():
                self._short(value.bit_length())

    def written(self, value: object) -> None:
        """Counts a value as text, nested values included, each as often as it would be written."""
        if isinstance(value, str):
            self._fits(len(value))
            return
        left = [value]
        chars = 0
        while left:
            item = left.pop()
            self.step()
            if isinstance(item, str):
                chars += len(item)
                self._within(chars)
            elif isinstance(item, Mapping):
                left.extend(item.keys())
                left.extend(item.values())
            elif isinstance(item, list | tuple | set):
                left.extend(item)
        self._fits(chars)

    def function(self, name: str, value: object, arguments: Iterable[object]) -> None:
        """Before a filter, or a method of the value: its work is bounded by what it is given."""
        given = list(arguments)
        self.step(1 + (len(value) // 64 if isinstance(value, Sized) else 0))
        if name in _PADDED:
            for argument in given:
                if isinstance(argument, int) and abs(argument) > self._limits.padding:
                    raise OverBudget(f"{name} is asked for more than {self._limits.padding}")
        if name in _TO_TEXT:
            self.written(value)
            self.written(given)
        if name in {"format", "format_map"} and isinstance(value, str):
            self._plain_format(value)
        self._grows(name, value, given)

    def counted(self, values: Iterator[T]) -> Iterator[T]:
        """The values of a generator, each counted as it is drawn."""
        for value in values:
            self.step(1, len(value) if isinstance(value, str) else 0)
            yield value

    def operation(self, operator: str, left: object, right: object) -> None:
        """Before `left operator right`."""
        self.step()
        match operator, left, right:
            case "+", str(), str():
                self._fits(len(left) + len(right))
            case "+", (list() | tuple()), (list() | tuple()):
                self._few(len(left) + len(right))
            case "%", str(), _:
                self._plain_format(left)
                self.written(left)
                self.written(right)
            case "*", (str() | list() | tuple()), int():
                self._repeated(left, right)
            case "*", int(), (str() | list() | tuple()):
                self._repeated(right, left)
            case "*", int(), int():
                self._short(left.bit_length() + right.bit_length())
            case "**", int(), int():
                self._short(left.bit_length() * max(right, 1))

    def _grows(self, name: str, value: object, given: list[object]) -> None:
        """The functions that can write an argument many times."""
        texts = [argument for argument in given if isinstance(argument, str)]
        if name == "replace" and isinstance(value, str) and len(texts) > 1:
            self._within(len(value) + value.count(texts[0]) * len(texts[1]))
        elif name == "join" and given and isinstance(value, Sized) and isinstance(given[0], Sized):
            self._within(len(value) * len(given[0]))  # a list and its separator, or, as a method, the other way round
        elif name in {"indent", "wordwrap"} and isinstance(value, str):
            self._within(len(value) * (1 + max((len(text) for text in texts), default=0)))

    def _repeated(self, value: str | list[object] | tuple[object, ...], count: int) -> None:
        size = len(value) * max(count, 0)
        if isinstance(value, str):
            self._fits(size)
        else:
            self._few(size)
            self.step(size // 8)

    def _plain_format(self, text: str) -> None:
        if _WIDE_FIELD.search(text):
            raise OverBudget("a format string has a field of unbounded width")

    def _fits(self, chars: int) -> None:
        self._within(chars)
        self.step(0, chars)

    def _within(self, chars: int) -> None:
        if chars > self._limits.value_chars:
            raise OverBudget(f"it makes a text of more than {self._limits.value_chars} characters")

    def _few(self, items: int) -> None:
        if items > self._limits.items:
            raise OverBudget(f"it makes a list of more than {self._limits.items} items")

    def _short(self, bits: int) -> None:
        if bits > self._limits.number_bits:
            raise OverBudget(f"it makes a number of more than {self._limits.number_bits} bits")
