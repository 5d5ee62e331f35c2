"""The one stream of events, and those who listen.

Invariant: an observer that fails harms neither the request nor the other observers. Its first failure is logged, each is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

import structlog

from gateway.events import Event

Observer = Callable[[Event], None]
"""One that names kinds of events in an attribute `hears` gets no others."""


class Bus:
    """Hands each event to each observer that hears it, in order, in the caller's own step: observers must be quick."""

    def __init__(self, observers: Sequence[Observer] = (), log: Any = None) -> None:
        kinds: tuple[type[Event], ...] = get_args(Event)
        self._hearing = {kind: tuple([each for each in observers if kind in getattr(each, "hears", kinds)]) for kind in kinds}
        self._log = log if log is not None else structlog.get_logger("gateway.observe.bus")
        self._failures: dict[str, int] = {}

    def emit(self, event: Event) -> None:
        """Tells every observer that hears it."""
        for observer in self._hearing[type(event)]:
            try:
                observer(event)
            except Exception as error:  # an observer is no part of the request: whatever it raises must not end one
                self._failed(observer, error)

    @property
    def failures(self) -> Mapping[str, int]:
        """Failed calls by observer."""
        return MappingProxyType(self._failures)

    def _failed(self, observer: Observer, error: Exception) -> None:
        name = getattr(observer, "__qualname__", type(observer).__qualname__)
        count = self._failures.get(name, 0) + 1
        self._failures[name] = count
        if count == 1:
            self._log.error("observer_failed", observer=name, exc_info=error)
