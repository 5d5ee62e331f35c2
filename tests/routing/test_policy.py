"""The engine with the least of our work; of several, the first in the settings."""

import pytest

from gateway.routing.policy import choose
from gateway.routing.view import EngineView, FleetView


@pytest.mark.parametrize(
    ("engines", "chosen"),
    [
        ([], None),
        ([("a", False, 0), ("b", False, 0)], None),
        ([("a", True, 0), ("b", True, 0)], "a"),
        ([("b", True, 0), ("a", True, 0)], "b"),
        ([("a", True, 2), ("b", True, 1)], "b"),
        ([("a", True, 3), ("b", False, 0), ("c", True, 2), ("d", True, 2)], "c"),
        ([("a", False, 0), ("b", True, 99)], "b"),
    ],
)
def test_the_least_busy_ready_engine(engines: list[tuple[str, bool, int]], chosen: str | None) -> None:
    view = FleetView(tuple(EngineView(*each) for each in engines))
    assert choose(view).engine == chosen
    assert view.ready is (chosen is not None)
