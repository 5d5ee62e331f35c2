"""All formats by name: each module in `gateway.formats.families` is one, found by scanning the package.

Invariant: a name or alias belongs to one format only. `NAME:SUFFIX` is the format with that suffix in its tags.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping

from gateway.formats import families
from gateway.formats.base import Format
from gateway.formats.compiled import compile_format
from gateway.formats.spec import FormatSpec
from gateway.formats.suffix import is_suffix, with_suffix


def load() -> Mapping[str, Format]:
    """Every format under each of its names."""
    modules = (importlib.import_module(f"{families.__name__}.{found.name}") for found in pkgutil.iter_modules(families.__path__))
    return by_name(module.FORMAT for module in modules)


def by_name(specs: Iterable[FormatSpec]) -> Mapping[str, Format]:
    """These formats under each of their names. Raises ValueError for a name that two of them have."""
    formats: dict[str, Format] = {}
    suffixed: dict[str, FormatSpec] = {}
    for spec in specs:
        compiled = compile_format(spec)
        for name in (spec.name, *spec.aliases):
            if name in formats:
                raise ValueError(f"two formats are named {name!r}: {formats[name].name} and {spec.name}")
            formats[name] = compiled
            if spec.suffixed:
                suffixed[name] = spec
    return _Formats(formats, suffixed)


class _Formats(Mapping[str, Format]):
    """Formats by name, and each of some with any suffix. Only the names without one are listed."""

    def __init__(self, named: dict[str, Format], suffixed: dict[str, FormatSpec]) -> None:
        self._named = named
        self._suffixed = suffixed

    def __getitem__(self, name: str) -> Format:
        base, _, suffix = name.partition(":")
        if name not in self._named and base in self._suffixed and is_suffix(suffix):
            return compile_format(with_suffix(self._suffixed[base], suffix))
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)
