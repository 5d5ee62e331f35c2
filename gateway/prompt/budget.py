"""What one render of an untrusted template may use: steps, memory, seconds, and the size of any one value.

Invariant: work is counted before it is done, by a bound on what it costs at worst, and a text or list before it is made. A step
is some microseconds of work at the most, so that a render ends after `steps` steps with values of at most `made_bytes` together;
where a clock is given, it is looked at every few steps of work, and slow renders end at `wall_s`. What each filter, test and
method costs is told in `gateway.prompt.costs`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one render. `made_bytes` is the memory of all values made on the way, thrown away or not, `value_bytes` that of one
    text: a character takes one byte, two or four, as Python keeps texts. `wall_s` are seconds.

    A render has `steps` and `message_steps` for each message: the costliest of 40 real templates takes 300 a message at 300.
    """

    wall_s: float = 2.0
    steps: int = 1_000_000
    message_steps: int = 2_000
    made_bytes: int = 128_000_000
    value_bytes: int = 16_000_000
    items: int = 1_000_000
    number_bits: int = 256
    padding: int = 10_000


class OverBudget(Exception):
    """The render would use more than its limits allow; the message says which."""


ESCAPED: Final = 6  # as many characters, at most, does one become that is escaped for HTML or JSON
OVERHEAD_BYTES: Final = 64  # of a text or a list in memory
_STEPS_A_LOOK = 16  # at the clock
_BYTES_A_STEP = 256  # that are copied, compared or searched
_ITEMS_A_STEP = 8  # that are copied
_AROUND_ITEM = 4  # characters: quotes, comma and blank
_KEY_BITS = 60  # whole numbers below 2 ** 61 - 1 are their own hash, so that a dict of them is quick
_LONG_WALK = 2_500  # see `search`
_KEYS: type = type({}.keys())
_ITEMS: type = type({}.items())
_CONTAINERS: tuple[type[Collection[object]], ...] = (list, tuple, dict, _KEYS, _ITEMS, type({}.values()))


class Budget:
    """The counters of one render. Without a clock, `seconds`, it may take as long as its steps take."""

    __slots__ = ("_bytes", "_ends_s", "_most_steps", "_seconds", "_steps", "_unlooked", "limits")

    def __init__(self, limits: Limits, messages: int = 0, seconds: Callable[[], float] | None = None) -> None:
        self.limits = limits
        self._steps = self._most_steps = limits.steps + messages * limits.message_steps
        self._bytes = limits.made_bytes
        self._seconds = seconds
        self._ends_s = seconds() + limits.wall_s if seconds is not None else 0.0
        self._unlooked = _STEPS_A_LOOK

    def step(self, cost: int = 1) -> None:
        """Counts work that is about to be done."""
        self._steps -= cost
        if self._steps < 0:
            raise OverBudget(f"it takes more than {self._most_steps} steps")
        self._unlooked -= cost
        if self._unlooked <= 0:
            self._unlooked = _STEPS_A_LOOK
            if self._seconds is not None and self._seconds() > self._ends_s:
                raise OverBudget(f"it takes more than {self.limits.wall_s:g} s")

    # What is made.

    def keep(self, size: int) -> None:
        """Counts bytes of memory that are about to be taken."""
        self._bytes -= size
        if self._bytes < 0:
            raise OverBudget(f"it makes more than {self.limits.made_bytes} bytes")

    def fit(self, size: int) -> int:
        """Whether a text of so many bytes may be made; the bytes."""
        if size > self.limits.value_bytes:
            raise OverBudget(f"it makes a text of more than {self.limits.value_bytes} bytes")
        return size

    def few(self, items: int) -> int:
        """Whether a list of so many items may be made; their number."""
        if items > self.limits.items:
            raise OverBudget(f"it makes a list of more than {self.limits.items} items")
        return items

    def copy(self, items: int) -> None:
        """Counts a list of so many items, about to be made of ones that there are."""
        self.step(1 + self.few(items) // _ITEMS_A_STEP)
        self.keep(OVERHEAD_BYTES + 8 * items)

    def short(self, bits: int) -> None:
        """Whether a number of so many bits may be made."""
        if bits > self.limits.number_bits:
            raise OverBudget(f"it makes a number of more than {self.limits.number_bits} bits")

    def made(self, value: object) -> None:
        """Counts a new value, which has at most a few times the size that was foreseen."""
        if isinstance(value, str):
            size = self.fit(text_bytes(value))
            self.keep(OVERHEAD_BYTES + size)
            self.step(1 + size // _BYTES_A_STEP)
        elif isinstance(value, list | tuple | dict):
            self.copy(len(value))
        elif isinstance(value, int):
            self.short(value.bit_length())

    def drawn(self, values: Iterator[T]) -> Iterator[T]:
        """The values of a generator, each counted as it is drawn."""
        for value in values:
            self.step()
            self.keep(OVERHEAD_BYTES)
            yield value

    # What is read.

    def text(self, value: object, around: int = 0, indent: int | None = None) -> int:
        """Counts a value that is written as text, each value inside as often as it is written; the bytes, but for escapes.

        `around` are characters of a separator, `indent` of a level where each item has a line of its own."""
        if isinstance(value, str):
            size = text_bytes(value)
            self.step(1 + size // _BYTES_A_STEP)
            return self.fit(size)
        if not isinstance(value, _CONTAINERS):
            self.step()
            return value.bit_length() // 3 + 2 if isinstance(value, int) else OVERHEAD_BYTES
        items, size = self._walked(value, _AROUND_ITEM + around, 0 if indent is None else indent + 1)
        self.step(items + self.fit(size) // _BYTES_A_STEP)
        return size

    def read(self, value: object) -> int:
        """Counts a value that is looked at whole, as a comparison does at worst; the steps."""
        if isinstance(value, str):
            steps = 1 + len(value) // _BYTES_A_STEP
        elif isinstance(value, _CONTAINERS):
            items, size = self._walked(value)
            steps = items + size // _BYTES_A_STEP
        else:
            steps = 1
        self.step(steps)
        return steps

    def _walked(self, value: object, around: int = 0, level_chars: int = 0) -> tuple[int, int]:
        """How many values there are in this one, and their bytes as text, level by level: what is there twice counts twice."""
        items = size = depth = 0
        level = [value]
        while level:
            items += len(level)
            size += len(level) * (around + depth * level_chars)
            below: list[object] = []
            for item in level:
                if isinstance(item, str):
                    size += text_bytes(item)
                elif isinstance(item, _CONTAINERS):
                    if items + len(below) + 2 * len(item) > self._steps:
                        self.step(self._steps + 1)
                    below.extend(item)
                    if isinstance(item, dict):
                        below.extend(item.values())
                elif isinstance(item, int):
                    size += item.bit_length() // 3
                else:
                    size += OVERHEAD_BYTES
            level = below
            depth += 1
        return items, size

    def key(self, value: object) -> None:
        """What is looked up in a dict, or put into one: a hash is quick, and no two of those let in are the same."""
        if isinstance(value, _CONTAINERS):
            raise TypeError(f"a key cannot be a {type(value).__name__}")
        if isinstance(value, int) and value.bit_length() > _KEY_BITS:
            raise OverBudget(f"a key is a number of more than {_KEY_BITS} bits")

    def search(self, text: str, part: object) -> None:
        """Counts a search from the left. Python's takes time in proportion to the text, but for parts that are about as long as
        the text, which it may compare at each of up to 2,000 places."""
        length = len(part) if isinstance(part, str) else 0
        walk = min(max(len(text) - length, 0), _LONG_WALK)
        self.step(1 + (len(text) + length * walk) // (4 * _BYTES_A_STEP))

    def product(self, text: str, part: object) -> None:
        """Counts work that may look at each character of the part for each of the text: a search from the right, `strip`."""
        self.step(1 + len(text) * (len(part) if isinstance(part, str) else 1) // (4 * _BYTES_A_STEP))

    def sort(self, values: Collection[object], *, rounds: bool = True) -> None:
        """Counts the comparisons that put values into order, or without `rounds` find the largest."""
        many = len(values)
        each = max(map(self.read, values), default=0)
        self.copy(many)
        self.keep(many * OVERHEAD_BYTES)
        self.step(each * many * (many.bit_length() if rounds else 1) // _ITEMS_A_STEP)

    # The operators.

    def compare(self, left: object, right: object) -> None:
        """Before `left == right`, `left < right` and the like."""
        if isinstance(left, str) and isinstance(right, str):
            self.step(1 + min(len(left), len(right)) // _BYTES_A_STEP)
        elif isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS):
            self.read(left)
        else:
            self.step()

    def contain(self, left: object, right: object) -> None:
        """Before `left in right`."""
        if isinstance(right, str):
            self.search(right, left)
        elif isinstance(right, dict | _KEYS):
            self.key(left)
            self.step()
        elif isinstance(right, _ITEMS):
            raise TypeError("nothing is looked for among a dict's items")
        elif isinstance(right, Collection):
            self.step(1 + len(right) * self.read(left) // _ITEMS_A_STEP)

    def slice(self, value: object, cut: slice) -> None:
        """Before `value[start:stop:step]`."""
        if isinstance(value, str | list | tuple | range):
            items = len(range(*cut.indices(len(value))))
            if isinstance(value, str):
                self.keep(OVERHEAD_BYTES + items * (1 if value.isascii() else 4))
                self.step(1 + items // _BYTES_A_STEP)
            else:
                self.copy(items)

    def operate(self, operator: str, left: object, right: object) -> None:
        """Before `left operator right`, but for `%` on a text."""
        self.step()
        match operator, left, right:
            case "+", str(), str():
                self.fit((text_bytes(left) + text_bytes(right)) * markup_growth(left, right))
            case "+", (list() | tuple()), (list() | tuple()):
                self.few(len(left) + len(right))
            case "*", (str() | list() | tuple()), int():
                self._repeat(left, right)
            case "*", int(), (str() | list() | tuple()):
                self._repeat(right, left)
            case "*", int(), int():
                self.short(left.bit_length() + right.bit_length())
            case "**", int(), int():
                self.short(left.bit_length() * max(right, 1))
            case _ if isinstance(left, _KEYS | _ITEMS) or isinstance(right, _KEYS | _ITEMS):
                raise TypeError(f"dicts have no {operator}")

    def _repeat(self, value: str | list[object] | tuple[object, ...], count: int) -> None:
        if isinstance(value, str):
            self.fit(text_bytes(value) * max(count, 0))
        else:
            self.few(len(value) * max(count, 0))


def text_bytes(text: str) -> int:
    """What its characters take in memory."""
    return len(text) if text.isascii() else text.__sizeof__()


def markup_growth(*texts: object) -> int:
    """How many times larger texts may become where one of them is marked as safe HTML: the others are escaped."""
    return ESCAPED if any(isinstance(text, str) and type(text) is not str for text in texts) else 1
