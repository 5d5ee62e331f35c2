"""Which engine an attempt goes to.

Now the one with the fewest attempts of ours running; of several, the first in the settings, which holds the longest cache.
"""

from gateway.routing.view import FleetView


def choose(view: FleetView) -> str | None:
    """The id of the engine to use, or None where none is ready."""
    ready = [engine for engine in view.engines if engine.ready]
    return min(ready, key=lambda engine: engine.running).id if ready else None
