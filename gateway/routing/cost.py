"""What a request costs on one engine, in seconds: where it gets its first token soonest, the delay it puts on others counted in.

    cost = wait + memory + kappa x (prefill + eviction) - shared + standing

No modes, no thresholds. A hot prefix is copied by itself, once the wait at its holder is longer than the prefill that a copy
costs, of which each that runs with that prefix now bears its part: it will serve those that come after too. That holds wholly
while all rest, and the less the busier they are: then the copy keeps others waiting, whoever it is for. A conversation moves when
the wait is worth making its prompt anew.
"""

from typing import NamedTuple

from gateway.routing.view import Terms

_BUSIEST = 0.95  # utilisation beyond which kappa rises no more
_MOST_HOLDS = 4.0
# Found by measuring on the loads of docs/simulate.md. A second of prefill costs others more than itself while all rest, as those
# that decode there stand still for it; and less than in one queue when all are busy, as some of those behind it go elsewhere.
_AT_REST = 1.29
_ELSEWHERE = 0.7
_WINDOW_S = 60.0


class Load(NamedTuple):
    """One engine as the router sees it now. Units are keys of the index. `work_s`: prefill of the last minute; `hold_s`: how
    long a request holds its memory. `running` requests of ours are on it, which has `slots` for them (None: no bound)."""

    wait_s: float
    work_s: float
    held_units: int
    capacity_units: int
    free_units: int
    tail_chance: float
    hold_s: float
    running: int = 0
    slots: int | None = None


class Need(NamedTuple):
    """What a request would want of this engine: its units, those that are there, those of them that running requests pin; those
    of its answer; the prefill of the rest, and of one unit. `lent`: the share of that prefill that is for others
    (gateway.routing.sharing)."""

    units: int
    matched: int
    pinned: int
    answer_units: int
    prefill_s: float
    unit_s: float
    lent: float = 0.0


def kappa(work_s: float, engines: int, most: float) -> float:
    """What a second of prefill costs everyone, the more the busier they are: from the prefill sent in the last minute to so many
    engines. No more than `most`, and at least 1."""
    busy = min(_BUSIEST, work_s / (max(1, engines) * _WINDOW_S))
    cost: float = _AT_REST * (1.0 - busy) ** -_ELSEWHERE
    return max(1.0, min(most, cost))


def memory_s(load: Load, need: Need) -> float:
    """How long until running requests leave enough of the memory; 0: there is room, or nobody who would make any."""
    lacking = load.held_units + need.units - need.pinned + need.answer_units - load.capacity_units
    if lacking <= 0 or load.held_units <= 0:
        return 0.0
    return load.hold_s * min(_MOST_HOLDS, 2.0 * lacking / load.held_units)


def slot_s(load: Load) -> float:
    """How long until a running request leaves its slot to this one; 0: one is free."""
    if load.slots is None or load.running < load.slots:
        return 0.0
    return load.hold_s * min(_MOST_HOLDS, (load.running - load.slots + 1) / load.slots)


def eviction_s(load: Load, need: Need) -> float:
    """What is pushed out of a full cache, by the prefill it takes to make again and the chance that it is wanted: a prefill that
    others will wait behind as well."""
    pushed = need.units - need.matched - load.free_units
    return pushed * need.unit_s * load.tail_chance if pushed > 0 else 0.0


def standing_s(load: Load, need: Need) -> float:
    """For what begins here (less than half is held): the engine's work of late, so that new conversations spread while all
    rest."""
    return need.prefill_s * load.work_s / _WINDOW_S if need.matched * 2 < need.units else 0.0


def terms(load: Load, need: Need, kappa: float) -> Terms:
    """The whole cost of a request on an engine."""
    room_s = max(memory_s(load, need), slot_s(load))
    shared_s = need.prefill_s * need.lent * min(kappa, _AT_REST**2 / kappa)  # all of what is for others, while all rest
    return Terms(load.wait_s, room_s, need.prefill_s, eviction_s(load, need), standing_s(load, need), kappa, shared_s)
