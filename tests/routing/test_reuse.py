"""What is asked for again, by how long ago: the newest counts most."""

from math import inf

import pytest

from gateway.routing.reuse import ReuseGaps

FADES = 0.9995  # for each gap that was seen since


def test_nothing_is_known_at_first() -> None:
    gaps = ReuseGaps()
    assert gaps.chance_after(0.0) == 1.0
    assert 0.0 < gaps.chance_after(1000.0) < 1.0
    assert gaps.chance_after(inf) == 0.0


@pytest.mark.parametrize("since", [0, 1, 100, 500_000])
def test_a_gap_fades_with_those_that_come_after_it(since: int) -> None:
    gaps = ReuseGaps()
    gaps.seen(3600.0)
    for _ in range(since):
        gaps.seen(0.01)
    old, first = FADES**since, FADES ** (since + 1)  # of each bin, there was one at first
    new = sum(FADES**number for number in range(since))
    longer, bins = 9, 24  # from that of an hour on, and all
    assert gaps.chance_after(3600.0) == pytest.approx((old + longer * first) / (old + new + bins * first), rel=1e-6)
