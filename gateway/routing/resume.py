"""Whether an answer that its engine broke off can be gone on with exactly, on another engine, unseen by the client.

Exact is: from the prompt's ids and those of the answer so far, another engine with the same weights makes what the first would
have made (or, where it samples, what it might have). What cannot be that is refused with the reason.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from gateway.request import GenerateRequest

Objection = Literal["off", "choices", "constraint", "penalties", "ids", "too_long", "resumes", "deadline", "ended"]
"""Why it cannot: the setting; more than one choice; a grammar, whose state is lost; penalties, which count other tokens then; an
engine that takes or gives no ids; more tokens than are kept; the second time; no time left; an answer that had its end."""

MOST_RESUMES = 2
_PREFILL_S = 1e-4  # a token, where nothing else is known


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer whose engine broke off. `kept`: all that is needed to go on is known. `same_penalties`: the penalties that count
    a prompt's tokens as they do the answer's. `ended`: its engine made a stop id and went on."""

    request: GenerateRequest
    constrained: bool
    takes_ids: bool
    kept: bool
    tokens: int
    resumes: int
    left_s: float
    same_penalties: Collection[str] = ()
    ended: bool = False


def objection(cut: Cut, *, on: bool = True) -> Objection | None:
    """Why this answer cannot be gone on with; None where it can."""
    if not on:
        return "off"
    if cut.request.n != 1:
        return "choices"
    if cut.constrained:
        return "constraint"
    if not penalties(cut.request) <= set(cut.same_penalties):
        return "penalties"
    if not cut.takes_ids:
        return "ids"
    if cut.ended:
        return "ended"
    if not cut.kept:
        return "too_long"
    if cut.resumes >= MOST_RESUMES:
        return "resumes"
    return "deadline" if cut.left_s <= cut.tokens * _PREFILL_S else None


def penalties(request: GenerateRequest) -> set[str]:
    """The penalties that a request sets."""
    sampling = request.sampling
    neutral = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
    return {name for name, value in neutral.items() if getattr(sampling, name) not in (None, value)}
