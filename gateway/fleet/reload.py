"""Files that are followed while the gateway runs: the settings, and models' lists of engines.

Invariant: a file that is missing, half written or wrong changes nothing: what the last good one said stays, and what is wrong is
told, once for each change of the file, in the log, in `/ready` and as a metric. It is tried again, as the fault may be elsewhere.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

import structlog

from gateway.apart import apart
from gateway.errors import SettingsError
from gateway.observe.group import Group
from gateway.observe.series import Gauge, Labels
from gateway.settings import EngineSettings, ModelSettings, Settings
from gateway.settings_base import Section

_log = structlog.get_logger("interlock.fleet")

T = TypeVar("T")
A = TypeVar("A")
Origin = Literal["settings", "engines_file", "dns"]
"""Where engines are named."""

_TOLD = 10  # problems of one origin that `/ready` shows
_LIVE = frozenset({"engines", "engines_file"})
_READ_S = 10.0  # a file that takes longer is told: its server may hang
_MOST_PAUSE_S = 60.0  # between two tries of a file that is wrong
_Signature = tuple[int, ...]


class Troubles:
    """What is wrong now with what names engines."""

    def __init__(self) -> None:
        self._now: dict[tuple[Origin, str], tuple[str, ...]] = {}

    def begin(self, origin: Origin, name: str, problems: tuple[str, ...]) -> bool:
        """Records problems; whether they are new."""
        known = self._now.get((origin, name))
        self._now[origin, name] = problems
        return known != problems

    def over(self, origin: Origin, name: str) -> None:
        """There are none any more."""
        self._now.pop((origin, name), None)

    def told(self) -> dict[str, list[str]]:
        """The first problems of each origin that has any."""
        told: dict[str, list[str]] = {}
        for (origin, name), problems in sorted(self._now.items()):
            lines = [each if origin != "dns" else f"{name}: {each}" for each in problems]
            told[origin] = [*told.get(origin, []), *lines][:_TOLD]
        return told

    def metrics(self) -> Group:
        """Whether each origin has problems."""

        def failed() -> list[tuple[Labels, float]]:
            return [((origin,), float(any(each == origin for each, _ in self._now))) for origin in get_args(Origin)]

        text = "1: what names engines there cannot be read now, and what it said before stays."
        return Group("Settings", [Gauge("interlock_config_reload_failed", text, ("origin",), failed)])


class WatchedFile:
    """Tells whether a file may say something new: its times, size, inode or rights changed, and it was left alone between two
    looks. One that is not `known` was not looked at yet."""

    def __init__(self, path: Path, *, known: bool = True) -> None:
        self.path = path
        self._taken = self._latest = _signature(path) if known else None

    def look(self) -> bool:
        """Whether to read it now."""
        now = _signature(self.path)
        settled, self._latest = now == self._latest, now
        if not settled or now == self._taken:
            return False
        self._taken = now
        return True

    def begin(self) -> None:
        """It is read from here on: only what changes later is new."""
        self._taken = self._latest = _signature(self.path)


def _signature(path: Path) -> _Signature | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_size, found.st_ino, found.st_dev


class Followed(Generic[T]):
    """A file that is read anew when it changes, or when that is asked for. `read` runs in a thread and raises SettingsError;
    `take` is given what it read."""

    def __init__(
        self,
        file: WatchedFile,
        origin: Origin,
        troubles: Troubles,
        *,
        read: Callable[[], T],
        take: Callable[[T], None],
        poll_s: float,
    ) -> None:
        self._file = file
        self._name = str(file.path)
        self._origin = origin
        self._troubles = troubles
        self._read = read
        self._take = take
        self._poll_s = poll_s
        self._asked = asyncio.Event()
        self._pause_s = 0.0
        self._again_s = math.inf

    def ask(self) -> None:
        """Reads it soon, changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Follows the file until it is cancelled; then nothing is wrong with it any more."""
        time = asyncio.get_running_loop().time
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await self._asked.wait()
                changed = await self._apart(self._file.look) or self._asked.is_set()
                if changed or time() >= self._again_s:
                    self._asked.clear()
                    await self._read_it(changed)
        finally:
            self._troubles.over(self._origin, self._name)

    async def _read_it(self, changed: bool) -> None:
        def read() -> T:
            self._file.begin()
            return self._read()

        try:
            found = await self._apart(read)
        except SettingsError as error:
            self._wrong(error.problems, changed)
        else:
            self._pause_s, self._again_s = 0.0, math.inf
            self._troubles.over(self._origin, self._name)
            self._take(found)

    async def _apart(self, work: Callable[[], A]) -> A:
        """What it gives, however late: that it is late is told meanwhile."""
        working = asyncio.create_task(apart(work))
        try:
            await asyncio.wait([working], timeout=_READ_S)
            if not working.done():
                self._wrong((f"{self._name}: not read after {_READ_S:g} s: what holds it does not answer",), False)
            return await working
        finally:
            working.cancel()

    def _wrong(self, problems: tuple[str, ...], changed: bool) -> None:
        self._pause_s = min(max(2 * self._pause_s, self._poll_s), _MOST_PAUSE_S)
        self._again_s = asyncio.get_running_loop().time() + self._pause_s
        if self._troubles.begin(self._origin, self._name, problems) or changed:
            _log.error("the file is not taken: what it said before stays", file=self._name, problems=list(problems))


Engines = tuple[EngineSettings, ...]


class EnginesFiles:
    """The models' files of engines. `read` gives what a model's file names, in a thread, and raises SettingsError; `take` is told
    it, by model; `poll_s` is how often files are looked at."""

    def __init__(
        self, read: Callable[[str, Path], Engines], take: Callable[[str, Engines], None], troubles: Troubles, poll_s: float
    ) -> None:
        self._read = read
        self._take = take
        self._troubles = troubles
        self._poll_s = poll_s
        self._wanted: dict[str, Path] = {}
        self._tasks: dict[str, tuple[Path, Followed[Engines], asyncio.Task[None]]] = {}
        self._news = asyncio.Event()

    def follow(self, files: Mapping[str, Path]) -> None:
        """The files to follow from now on, by model. What a file named that is followed no longer goes, but where there is
        another in its place, it stays until that was read."""
        for model in self._wanted.keys() - files.keys():
            self._take(model, ())
        self._wanted = dict(files)
        self._news.set()

    def ask(self) -> None:
        """Reads all of them soon, changed or not."""
        for _, file, _ in self._tasks.values():
            file.ask()

    async def run(self) -> None:
        """Follows files for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                for model, (path, _, task) in list(self._tasks.items()):
                    if self._wanted.get(model) != path:
                        task.cancel()
                        del self._tasks[model]
                for model, path in self._wanted.items():
                    if model not in self._tasks:
                        file = self._followed(model, path)
                        self._tasks[model] = (path, file, group.create_task(file.run()))
                self._news.clear()
                await self._news.wait()

    def _followed(self, model: str, path: Path) -> Followed[Engines]:
        def take(engines: Engines) -> None:
            if self._wanted.get(model) == path:
                self._take(model, engines)

        file = Followed(
            WatchedFile(path, known=False),
            "engines_file",
            self._troubles,
            read=lambda: self._read(model, path),
            take=take,
            poll_s=self._poll_s,
        )
        file.ask()
        return file


def needs_restart(old: Settings, new: Settings) -> Iterator[str]:
    """The key paths of `new` that a running gateway does not take: all but its models' engines."""
    for key in Settings.model_fields:
        before, after = getattr(old, key), getattr(new, key)
        if key == "models":
            yield from _models_that_differ(old, new)
        elif isinstance(before, Section):
            yield from (f"{key}.{each}" for each in type(before).model_fields if getattr(before, each) != getattr(after, each))
        elif before != after:
            yield key


def _models_that_differ(old: Settings, new: Settings) -> Iterator[str]:
    before: Mapping[str, ModelSettings] = {model.name: model for model in old.models}
    for index, model in enumerate(new.models):
        known = before.get(model.name)
        if known is None:
            yield f"models[{index}].name"
            continue
        keys = [key for key in ModelSettings.model_fields if key not in _LIVE]
        yield from (f"models[{index}].{key}" for key in keys if getattr(known, key) != getattr(model, key))
    if gone := before.keys() - {model.name for model in new.models}:
        yield f"models (without {', '.join(sorted(gone))})"
