"""How much of a prompt is wanted by others too: by the requests that run now with the same beginning.

What an engine computes of it serves those that come after as well. How many these will be is not known; as many as run now came
within the time that one takes, and those after them will come as quickly. They have the engines that hold it already, too: of n
that run with it on m engines, and this one, each of m + 1 engines would serve (n + 1) / (m + 1).
"""

from collections.abc import Mapping, Sequence

Levels = tuple[tuple[int, float], ...]


def shared_levels(keys: Sequence[int], pins: Sequence[Mapping[int, int]]) -> Levels:
    """Depths of a chain, each deeper than the one before, with what part of making it down to there is for others, at least.
    `pins` count, for each engine, the running requests that hold a key. From one level to the next their number falls to half or
    less, so that there are few levels; the last has two."""
    holding = [each for each in pins if keys[0] in each] if keys else []
    levels = list[tuple[int, float]]()
    depth, most = 0, sum(each[keys[0]] for each in holding)
    while most > 1:
        engines = sum([keys[depth] in each for each in holding])
        depth = _deepest(keys, holding, depth + 1, most)
        levels.append((depth, max(0.0, 1.0 - (engines + 1) / (most + 1))))
        if depth == len(keys):
            break
        most = min(_holders(keys[depth], holding), most // 2)
    return tuple(levels)


def lent_units(levels: Levels, matched: int) -> float:
    """Of what comes after the first `matched` keys, how much is for others."""
    lent, depth = 0.0, matched
    for level, part in levels:
        if level > depth:
            lent += (level - depth) * part
            depth = level
    return lent


def _deepest(keys: Sequence[int], pins: Sequence[Mapping[int, int]], low: int, holders: int) -> int:
    """How deep so many hold it, which do down to `low`."""
    high = len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if _holders(keys[middle - 1], pins) >= holders:
            low = middle
        else:
            high = middle - 1
    return low


def _holders(key: int, pins: Sequence[Mapping[int, int]]) -> int:
    return sum([each.get(key, 0) for each in pins])
