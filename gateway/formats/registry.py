"""All formats by name: each module in `gateway.formats.families` is one, found by scanning the package.

Invariant: a name or alias belongs to one format only.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gateway.formats import families
from gateway.formats.base import Format
from gateway.formats.compiled import compile_format
from gateway.formats.spec import FormatSpec


def load() -> Mapping[str, Format]:
    """Every format under each of its names."""
    modules = (importlib.import_module(f"{families.__name__}.{found.name}") for found in pkgutil.iter_modules(families.__path__))
    return by_name(module.FORMAT for module in modules)


def by_name(specs: Iterable[FormatSpec]) -> Mapping[str, Format]:
    """These formats under each of their names. Raises ValueError for a name that two of them have."""
    formats: dict[str, Format] = {}
    for spec in specs:
        compiled = compile_format(spec)
        for name in (spec.name, *spec.aliases):
            if name in formats:
                raise ValueError(f"two formats are named {name!r}: {formats[name].name} and {spec.name}")
            formats[name] = compiled
    return MappingProxyType(formats)
