"""The kinds of engines there are: every module of this package that exports `ENGINE`, so that a new kind is one new file."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping

import engines
from engines.base import Engine


def known() -> tuple[str, ...]:
    """The kinds, as settings name them."""
    return tuple(sorted(_table()))


def make(kind: str) -> Engine:
    """A fresh adapter. Raises KeyError for a kind that is not known."""
    return _table()[kind]()


def _table() -> Mapping[str, Callable[[], Engine]]:
    """Makers by kind. Two modules with one kind are a bug in this package."""
    table: dict[str, Callable[[], Engine]] = {}
    for module in pkgutil.iter_modules(engines.__path__, "engines."):
        maker = getattr(importlib.import_module(module.name), "ENGINE", None)
        if maker is not None:
            if maker.kind in table:
                raise RuntimeError(f"two engine adapters are of kind {maker.kind!r}")
            table[maker.kind] = maker
    return table
