"""How much of a prompt is wanted by others too: by the requests that run now with the same beginning.

What an engine computes of it serves those that come after as well. How many these will be is not known; as many as run now came
within the time that one takes, and those after them will come as quickly.
"""

from collections.abc import Mapping, Sequence

Levels = tuple[tuple[int, int], ...]


def shared_levels(keys: Sequence[int], pins: Sequence[Mapping[int, int]]) -> Levels:
    """Depths of a chain, each deeper than the one before, with how many running requests hold it down to there at least: two or
    more. `pins` count, for each engine, the running requests that hold a key. Between two levels the number falls to half or
    less, so that there are few of them."""
    holding = [each for each in pins if keys[0] in each] if keys else []
    levels = list[tuple[int, int]]()
    depth, most = 0, sum(each[keys[0]] for each in holding)
    while most > 1:
        depth = _deepest(keys, holding, depth + 1, most)
        levels.append((depth, most))
        if depth == len(keys):
            break
        most = min(_holders(keys[depth], holding), most // 2)
    return tuple(levels)


def lent_units(levels: Levels, matched: int) -> float:
    """Of what comes after the first `matched` keys, how much is for others: of a key that n hold, (n - 1) / n."""
    lent, depth = 0.0, matched
    for level, holders in levels:
        if level > depth:
            lent += (level - depth) * (1.0 - 1.0 / holders)
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
