"""Whose an engine is that some are held for: theirs, once a wait has made up for the work.

A request that is held for an engine is passed by others that this engine has a place for: by those with less work, and by those
that need less memory. That ends when it has waited as long as `turns.AGEING` lets a wait make up for its work: 1 s for 0.3 s of
it. From then on the engine is claimed: nobody whose turn is after that one's is sent there before it. So the engine gets empty
enough for it.
"""

from bisect import bisect_left, insort

from gateway.routing.turns import AGEING


def claims_s(work_s: float, since_s: float) -> float:
    """When one that waits since then for so much work has a claim."""
    return since_s + work_s / AGEING


class Claims:
    """Those of one model. Times are seconds."""

    def __init__(self) -> None:
        self._from_s: dict[tuple[str, int], list[float]] = {}  # by engine and priority, the earliest first

    def __bool__(self) -> bool:
        return bool(self._from_s)

    def add(self, engine: str, priority: int, from_s: float) -> None:
        """One is held for this engine, and claims it from then on."""
        insort(self._from_s.setdefault((engine, priority), []), from_s)

    def drop(self, engine: str, priority: int, from_s: float) -> None:
        """It is held for it no more."""
        moments = self._from_s[engine, priority]
        del moments[bisect_left(moments, from_s)]
        if not moments:
            del self._from_s[engine, priority]

    def before(self, priority: int, now_s: float) -> set[str]:
        """The engines that are claimed from a newcomer of this priority."""
        return {engine for (engine, its), moments in self._from_s.items() if its >= priority and moments[0] <= now_s}
