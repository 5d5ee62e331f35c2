"""Capture, which this version does not have: its metrics are there at zero, so that dashboards and alerts are whole."""

from gateway.observe.group import Group, Known
from gateway.observe.series import Counter

_REASONS = ("queue_full", "too_large", "write_failed")


class Capture(Group):
    """All zero."""

    def __init__(self, _: Known) -> None:
        records = Counter("interlock_capture_records_total", "Requests that were captured; this version captures none.", ())
        dropped = Counter("interlock_capture_dropped_total", "Requests that could not be captured, by reason.", ("reason",))
        records.start([()])
        dropped.start((reason,) for reason in _REASONS)
        super().__init__("Capture", (records, dropped))


GROUP = Capture
