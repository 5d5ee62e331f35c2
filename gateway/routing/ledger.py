"""What was sent to the engines of one model and is not over, and what is believed of each engine for it.

A charge is owned by its request: opened as it is sent, closed once, however it ends. Sums are whole numbers (nanoseconds,
units), so that with no request open each of them is exactly 0.
"""

from collections import OrderedDict
from collections.abc import Collection
from math import exp, inf

import msgspec

from gateway.routing.prefill import Work

_WINDOW_S = 60.0
_LEAST_UNITS = 8
_SHRINK, _GROW = 0.95, 1.10
_FULL_SHARE = 0.5  # of the capacity that must be in use before more than was believed says that it is larger
_LEAST_SHARE, _MOST_SHARE = 0.2, 64.0  # of what it says; the most is for tiers that it does not count
_WRONG_UNITS, _WRONG_IN_A_ROW = 8, 2
_ANSWER_TOKENS, _HOLD_S = 256.0, 20.0  # until they are seen
_MOST_UNSERVED = 4096


class Charge(msgspec.Struct):
    """One attempt on an engine. `believed_tokens` of its prompt were believed there, by keys of at most `unit_tokens`; `stamp` is
    its mark in the index; `answer_units` is the room its answer is given. `prompt`: it could start at once but for the prefill
    ahead. `used`: the last use of what was believed there, as a stamp; `proved`: no other request was to bring it. `held` of its
    keys were in the index, found or not. `first_s`: when its first token came."""

    request: str
    engine: str
    keys: tuple[int, ...]
    believed_tokens: int
    unit_tokens: float
    work: Work
    prefill_s: float
    answer_units: int
    stamp: float
    prompt: bool = True
    used: float = -inf
    proved: bool = True
    held: int = 0
    first_s: float | None = None
    cached_tokens: int | None = None

    @property
    def prefill_ns(self) -> int:
        """The predicted prefill, to be added and taken away exactly."""
        return int(self.prefill_s * 1e9)


class Account:
    """What one engine has of ours, and what is believed of it."""

    def __init__(self, capacity_units: int) -> None:
        self.running = 0
        self.hold_s = _HOLD_S
        self._pending: OrderedDict[str, int] = OrderedDict()
        self._pending_ns = 0
        self._since_s = 0.0  # from when on the first of the queue is worked on
        self._work_s = 0.0  # prefill sent, fading
        self._work_at_s = 0.0
        self._told_units = capacity_units
        self._capacity = float(capacity_units)
        self._reports = False
        self._told = False
        self._wrong = 0
        self._wrong_since = inf
        self.life: int | None = None  # of the engine, as last seen

    @property
    def pending_ns(self) -> int:
        """Prefill sent and not yet answered by a first token, in nanoseconds."""
        return self._pending_ns

    @property
    def capacity_units(self) -> int:
        """What it can hold, as believed now."""
        return max(_LEAST_UNITS, int(self._capacity))

    @property
    def idle(self) -> bool:
        """Whether no prompt of ours is being made."""
        return not self._pending

    def tell_capacity(self, units: int) -> None:
        """What the engine says of itself. Said again, it does not undo what was learned."""
        self._told = True
        if units != self._told_units:
            self._told_units = units
            self._capacity = float(units)

    def wait_s(self, now_s: float) -> float:
        """The prefill that is ahead of a new request, less what the first of it has already had."""
        if not self._pending:
            return 0.0
        head_ns = next(iter(self._pending.values()))
        return max(0.0, self._pending_ns * 1e-9 - min(head_ns * 1e-9, max(0.0, now_s - self._since_s)))

    def work_s(self, now_s: float) -> float:
        """Prefill sent of late, fading over a minute."""
        if now_s > self._work_at_s:
            self._work_s *= exp((self._work_at_s - now_s) / _WINDOW_S)
            self._work_at_s = now_s
        return self._work_s

    def open(self, charge: Charge, now_s: float) -> None:
        """It was sent."""
        if not self._pending:
            self._since_s = now_s
        self._pending[charge.request] = charge.prefill_ns
        self._pending_ns += charge.prefill_ns
        self._work_s = self.work_s(now_s) + charge.prefill_s
        self.running += 1

    def first_token(self, charge: Charge, now_s: float) -> float:
        """Its prefill is done; how long the engine had for it alone."""
        took_s = max(0.0, now_s - self._since_s)
        self._settle(charge)
        self._since_s = now_s
        return took_s

    def close(self, charge: Charge, now_s: float) -> None:
        """It is over, however. Prefill that was never done is no work."""
        if charge.request in self._pending:
            first = next(iter(self._pending)) == charge.request
            self._settle(charge)
            self._work_s = max(0.0, self.work_s(now_s) - charge.prefill_s)
            if first:
                self._since_s = now_s
        self.running -= 1

    def held_for(self, seconds: float) -> None:
        """A request held its memory for so long after its first token."""
        self.hold_s += 0.05 * (seconds - self.hold_s)

    def compare(self, charge: Charge, reported: int | None, held_units: int) -> float | None:
        """Learns the capacity from what the engine says it had of a prompt, with so many units believed to be in it. A stamp: of
        what was last used before, it holds nothing, as two in a row lacked what no lack of room can have pushed out. A report
        of None is unknown until the engine has once said a number; then it is 0."""
        self._reports = self._reports or reported is not None
        if not self._reports or not charge.prompt:  # while it waited, others took what was there
            return None
        had, believed, unit = reported or 0, charge.believed_tokens, charge.unit_tokens
        tolerated = max(2 * unit, believed / 16)
        if had + tolerated < believed:
            self._capacity = max(self._capacity * _SHRINK, self._told_units * _LEAST_SHARE)
        elif had > believed + tolerated and held_units >= self._capacity * _FULL_SHARE:  # else others sent it
            self._capacity = min(self._capacity * _GROW, self._told_units * _MOST_SHARE)
        if believed < _WRONG_UNITS * unit or not charge.proved:
            return None
        if had < unit or (had + tolerated < believed and self._told and held_units < self._told_units):
            self._wrong_since = min(self._wrong_since, charge.stamp) if self._wrong else charge.stamp
            self._wrong += 1
        elif charge.used < self._wrong_since:  # what was there before the first of them; what came since proves nothing
            self._wrong = 0
        if self._wrong < _WRONG_IN_A_ROW:
            return None
        self._wrong = 0
        return self._wrong_since

    def restarted(self) -> None:
        """What was learned of its capacity may be of another process."""
        self._capacity = float(self._told_units)
        self._wrong = 0

    def _settle(self, charge: Charge) -> None:
        self._pending_ns -= self._pending.pop(charge.request, 0)


class Ledger:
    """The charges of one model. `default_units`: the capacity of an engine that has not said it."""

    def __init__(self, default_units: int) -> None:
        self._charges: dict[str, Charge] = {}
        self._accounts: dict[str, Account] = {}
        self._unserved: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._default_units = default_units
        self.answer_tokens = _ANSWER_TOKENS

    def __len__(self) -> int:
        return len(self._charges)

    @property
    def idle(self) -> bool:
        """Whether no engine has anything of ours."""
        return not any(account.running or account.pending_ns for account in self._accounts.values())

    def account(self, engine: str) -> Account:
        """The engine's."""
        found = self._accounts.get(engine)
        if found is None:
            found = self._accounts[engine] = Account(self._default_units)
        return found

    def forget(self, engines: Collection[str]) -> list[str]:
        """Forgets all engines but these and those that have requests; which those are."""
        gone = [engine for engine, account in self._accounts.items() if engine not in engines and not account.running]
        for engine in gone:
            del self._accounts[engine]
        return gone

    def get(self, request: str) -> Charge | None:
        """The open charge of a request."""
        return self._charges.get(request)

    def open(self, charge: Charge, now_s: float) -> None:
        """A request is sent to an engine."""
        self._charges[charge.request] = charge
        self.account(charge.engine).open(charge, now_s)

    def close(self, request: str, now_s: float) -> Charge | None:
        """It is over; None: it was not open, or is no more."""
        charge = self._charges.pop(request, None)
        if charge is not None:
            self.account(charge.engine).close(charge, now_s)
        return charge

    def unserved(self, charge: Charge) -> None:
        """It was closed before its first token, and may be sent again: what it found is known of the last of these."""
        self._unserved[charge.request] = charge.engine, charge.used
        if len(self._unserved) > _MOST_UNSERVED:
            self._unserved.popitem(last=False)

    def sent_before(self, request: str) -> tuple[str, float] | None:
        """The engine to which this request was sent without a first token, and the last use of what it found there."""
        return self._unserved.pop(request, None)

    def answered(self, charge: Charge, now_s: float, output_tokens: int) -> None:
        """How long answers are, and how long they hold memory, is learned of one that came whole."""
        self.answer_tokens += 0.01 * (output_tokens - self.answer_tokens)
        if charge.first_s is not None:
            self.account(charge.engine).held_for(max(0.0, now_s - charge.first_s))
