"""Whether an engine has in its cache what is believed of it: each attempt compared, and an alarm when the two drift apart.

Pure: the caller gives what was expected and what was told. The past fades with each attempt of which something was believed; one
of which nothing was says nothing of the belief.
"""

from dataclasses import dataclass
from typing import Literal

Result = Literal["right", "over", "under"]
"""What was believed of one prompt: as the engine says, more than it had, or less."""
State = Literal["not_told", "too_few", "as_predicted", "drifts"]
"""The engine has never said what it had; it has, of too few prompts; as it was believed; much less than that."""
Turn = Literal["began", "ended"]

_NEAR = 0.05  # of the prompt
_PAST = 50  # attempts; weights fade by this
_FEWEST = 10
_BEGINS, _ENDS = 0.25, 0.10  # of the tokens that were believed, so many that were not there


@dataclass(frozen=True, slots=True)
class Compared:
    """One attempt: tokens that were believed in the cache, those that the engine had, and how far these are apart, in prompts.
    `turn`: the alarm began or ended with it."""

    predicted: int
    reported: int
    error: float
    result: Result
    turn: Turn | None = None


class Drift:
    """One engine's. `right`, `over` and `under` count what was compared; `predicted` and `reported` are tokens of late, faded."""

    def __init__(self) -> None:
        self.told = False
        self.alarm = False
        self.right = self.over = self.under = 0
        self.predicted = self.reported = 0.0
        self._lacking = 0.0  # of `predicted`, by attempts that were not right
        self._seen = 0

    @property
    def state(self) -> State:
        """What can be said of it now."""
        if not self.told:
            return "not_told"
        if self.alarm:
            return "drifts"
        return "too_few" if self._seen < _FEWEST else "as_predicted"

    def take(self, prompt_tokens: int, predicted: int, reported: int | None, unit_tokens: float) -> Compared | None:
        """Compares one attempt. `reported` None is unknown until the engine has once said a number; then it is 0. `unit_tokens`:
        nothing is predicted more finely."""
        self.told = self.told or reported is not None
        if not self.told:
            return None
        had = max(0, reported or 0)
        apart = predicted - had
        if abs(apart) <= max(_NEAR * prompt_tokens, unit_tokens):
            result: Result = "right"
            self.right += 1
        elif apart > 0:
            result = "over"
            self.over += 1
        else:
            result = "under"
            self.under += 1
        turn = self._judge(predicted, had, 0 if result == "right" else apart) if predicted > 0 else None
        return Compared(predicted, had, abs(apart) / max(1, prompt_tokens), result, turn)

    def _judge(self, predicted: int, had: int, lacking: int) -> Turn | None:
        kept = 1.0 - 1.0 / _PAST
        self._seen += 1
        self.predicted = self.predicted * kept + predicted
        self.reported = self.reported * kept + had
        self._lacking = self._lacking * kept + lacking
        if self._seen < _FEWEST:
            return None
        rings = self._lacking > self.predicted * (_ENDS if self.alarm else _BEGINS)
        if rings == self.alarm:
            return None
        self.alarm = rings
        return "began" if rings else "ended"
