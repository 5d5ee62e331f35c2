"""The tables of what an engine takes and gives: names, types and where each is written."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
_SCALARS: Mapping[str, Callable[[object], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
}


def _ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_SCALARS["int"], value))


def _biases(value: object) -> bool:
    return isinstance(value, dict) and all(map(_SCALARS["float"], value.values()))


# Types that have names of their own; a request of the gateway has one prompt, so that lists of lists are none of these.
_NAMED: Mapping[str, Callable[[object], bool]] = {
    **_SCALARS,
    **dict.fromkeys(("TokenIdsOrList", "Int64List", "List[int]", "Union[List[int], List[List[int]], str, List[str]]"), _ids),
    "BoolOrList": _SCALARS["bool"],
    "Int64OrList": _SCALARS["int"],
    "Dict[str, float]": _biases,
    "Optional[Union[str, List[str]]]": _SCALARS["str"],
}


@cache
def load(engine: str) -> Any:
    """The table of an engine."""
    return yaml.safe_load((HERE / f"{engine}.yaml").read_text())


def fault(fields: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """What is wrong with an object: a field that the table lacks, or a value that is not of its type."""
    for name, value in given.items():
        if name not in fields:
            return f"unknown field `{name}`"
        if not _fits(fields[name]["type"], value):
            return f"invalid type of `{name}`"
    return None


def _fits(kind: str, value: object) -> bool:
    inner = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    if value is None:
        return inner != kind
    check = _NAMED.get(kind) or _NAMED.get(inner)
    return isinstance(value, dict | list) if check is None else check(value)


def conforms(fields: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Fails for a field of an answer that the table lacks: a fake must not make up what its engine does not say."""
    assert not (extra := made.keys() - fields.keys()), f"the engine has no {sorted(extra)}"
