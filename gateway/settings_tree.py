"""The settings file and the environment as one tree of plain values that remembers where each value came from.

YAML is read by its 1.2 core schema: `no`, `on`, `1:30` and `2026-01-01` are text. A variable `INTERLOCK_SERVER__PORT=9000` stands
for `server: {port: 9000}`; list items go by index (`INTERLOCK_MODELS__0__NAME`), and a variable's value is YAML too.

Invariant: any file gives a tree or `SettingsError`. Size, depth and the number of values, aliases unfolded, are bounded.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.errors import SettingsError

KeyPath = tuple[str | int, ...]

PREFIX = "INTERLOCK_"
MAX_FILE_BYTES = 256 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 16

_TAG = "tag:yaml.org,2002:"


class Place(NamedTuple):
    """Where a value came from: a line of the file, or a variable (line 0)."""

    name: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}:{self.column}" if self.line else self.name


class Problem(NamedTuple):
    """One thing wrong with the settings."""

    place: Place
    path: KeyPath
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {shown_path(self.path)}: {self.message}" if self.path else f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class SettingsTree:
    """The values of file and environment together, where each stands, and what was wrong already. A mapping by keys,
    or a list."""

    values: Any
    places: Mapping[KeyPath, Place]
    problems: tuple[Problem, ...]

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A problem at `path`, placed at the nearest key that was written."""
        written = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in self.places)
        return Problem(self.places[written], path, message)


def shown_path(path: KeyPath) -> str:
    """`models[0].engines[0].kind`"""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def read_tree(file: Path, environ: Mapping[str, str]) -> SettingsTree:
    """Raises SettingsError where there is nothing to check: no such file, not text, not YAML, not a mapping."""
    reading = _Reading(str(file), numbered=True)
    try:
        values = reading.read(_text(file), ())
    except _Unreadable as error:
        raise SettingsError((str(error.problem),)) from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise SettingsError((f"{file}: the settings must be a mapping of keys, as `models: …`",))
    places = {(): Place(str(file), 1, 1)} | reading.places
    problems = reading.problems
    for name, path in _variables(environ):
        reading = _Reading(name, numbered=False)
        try:
            values = _assigned(values, path, reading.read(environ[name], path))
        except _Unreadable as error:
            problems.append(error.problem)
        except _Misplaced as error:
            problems.append(Problem(Place(name), path, str(error)))
        else:
            kept = {key: place for key, place in places.items() if key[: len(path)] != path}
            parents = {path[:end]: Place(name) for end in range(1, len(path))}
            places = parents | kept | reading.places | {path: Place(name)}
            problems += reading.problems
    return SettingsTree(values, places, tuple(problems))


def read_list(file: Path) -> SettingsTree:
    """A file with a list. Raises SettingsError where it is none; an empty file, as one that is being written, is none."""
    reading = _Reading(str(file), numbered=True)
    try:
        values = reading.read(_text(file), ())
    except _Unreadable as error:
        raise SettingsError((str(error.problem),)) from None
    if not isinstance(values, list):
        raise SettingsError((f"{file}: must be a list of engines, as `- {{id: …, url: …, kind: …}}`; `[]` is none",))
    return SettingsTree(values, {(): Place(str(file), 1, 1)} | reading.places, tuple(reading.problems))


def _text(file: Path) -> str:
    try:
        with open(file, "rb", opener=_opened) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise SettingsError((f"{file}: must be a regular file: a pipe or a device may never end",))
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SettingsError((f"{file}: the file is over {MAX_FILE_BYTES} bytes",))
        return data.decode("utf-8-sig")
    except OSError as error:
        raise SettingsError((f"{file}: cannot be read: {error.strerror or error}",)) from None
    except UnicodeDecodeError as error:
        raise SettingsError((f"{file}: not UTF-8 text: byte {error.start} cannot be decoded",)) from None


def _opened(file: str, flags: int) -> int:
    """A pipe that nobody writes to is not waited for."""
    return os.open(file, flags | os.O_NONBLOCK)


def _variables(environ: Mapping[str, str]) -> list[tuple[str, KeyPath]]:
    """The variables that are settings, outer keys first. A double underscore tells them from others with the prefix."""
    found = [(name, _key_path(name)) for name in environ if name.startswith(PREFIX) and "__" in name]
    return sorted(found, key=lambda pair: [(isinstance(key, str), key) for key in pair[1]])


def _key_path(name: str) -> KeyPath:
    keys = name.removeprefix(PREFIX).split("__")
    return tuple(int(key) if key.isascii() and key.isdigit() and len(key) < 6 else key.lower() for key in keys)


class _Misplaced(ValueError):
    """A variable names a place that the tree does not have."""


def _assigned(node: Any, path: KeyPath, value: Any) -> Any:
    """`node` with `value` at `path`."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(key, str):
        mapping = {} if node is None else node
        if not isinstance(mapping, dict):
            raise _Misplaced(f"there is no mapping that `{key}` could be a key of")
        return {**mapping, key: _assigned(mapping.get(key), rest, value)}
    items = [] if node is None else node
    if not isinstance(items, list):
        raise _Misplaced(f"there is no list that {key} could be an index of")
    if key > len(items):
        raise _Misplaced(f"the next index of the list is {len(items)}, not {key}")
    old = items[key] if key < len(items) else None
    return [*items[:key], _assigned(old, rest, value), *items[key + 1 :]]


class _Unreadable(Exception):
    """Text that gives no value at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2's core schema in place of 1.1's."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own attribute; never changed
        None: [
            (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$")),
            (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
            (_TAG + "int", re.compile(r"[-+]?[0-9]+$")),
            (_TAG + "float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")),
            (_TAG + "merge", re.compile(r"<<$")),
        ]
    }


class _Reading:
    """One YAML text read into plain values. `places` and `problems` fill as it goes."""

    def __init__(self, name: str, *, numbered: bool) -> None:
        self.places: dict[KeyPath, Place] = {}
        self.problems: list[Problem] = []
        self._name = name
        self._numbered = numbered
        self._left = MAX_VALUES

    def read(self, text: str, path: KeyPath) -> Any:
        """The value that the text stands for, at `path` of the tree. Raises _Unreadable."""
        try:
            node = yaml.compose(text, Loader=_Loader)
            return None if node is None else self._value(node, path)
        except yaml.MarkedYAMLError as error:
            raise self._unreadable(f"not valid YAML: {error.problem}", error.problem_mark) from None
        except yaml.reader.ReaderError as error:
            raise self._unreadable(f"not valid YAML: character U+{int(error.character):04X} is not allowed", None) from None
        except RecursionError:
            raise self._unreadable("nested too deeply", None) from None

    def _place(self, mark: yaml.Mark | None) -> Place:
        return Place(self._name, mark.line + 1, mark.column + 1) if mark and self._numbered else Place(self._name)

    def _unreadable(self, message: str, mark: yaml.Mark | None) -> _Unreadable:
        return _Unreadable(Problem(self._place(mark), (), message))

    def _wrong(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(self._place(node.start_mark), path, message))

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._left -= 1
        if self._left < 0:
            raise self._unreadable(f"over {MAX_VALUES} values, repeated aliases included", None)
        if len(path) > MAX_DEPTH:
            raise self._unreadable("nested too deeply", node.start_mark)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return self._list(node, path)
        return self._scalar(node, path)

    def _list(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self.places[*path, index] = self._place(item.start_mark)
            values.append(self._value(item, (*path, index)))
        return values

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                values = self._merged(value, path) | values
        written: dict[str, Place] = {}
        for key, value in node.value:
            here = (*path, key.value) if isinstance(key, yaml.ScalarNode) else path
            if key.tag == _TAG + "merge":
                continue
            if key.tag != _TAG + "str":
                self._wrong(key, path, "a key must be text")
            elif key.value in written:
                self._wrong(key, here, f"written twice; first on line {written[key.value].line}")
            else:
                self.places[here] = written[key.value] = self._place(key.start_mark)
                values[key.value] = self._value(value, here)
        return values

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        """What `<<` brings in: a mapping, or a list of mappings of which the first to have a key wins."""
        values: dict[str, Any] = {}
        for each in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            found = self._value(each, path)
            if isinstance(found, dict):
                values |= found
            else:
                self._wrong(each, path, "only a mapping can be merged with `<<`")
        return values

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" | "float" as kind:
                try:
                    return int(text) if kind == "int" else float(text)
                except ValueError:
                    self._wrong(node, path, "not a number that can be read")
            case _:
                self._wrong(node, path, "YAML tags are not supported")
        return None
