"""Everything that names engines, followed while the gateway runs: its settings file, and the files that name more engines.

Invariant: of a settings file that is read again only the models' engines are taken; what else is new in it is told.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from gateway.errors import SettingsError
from gateway.fleet.discovery import Membership
from gateway.fleet.reload import Engines, EnginesFiles, Followed, Troubles, WatchedFile, needs_restart
from gateway.settings import ModelSettings, Settings

_log = structlog.get_logger("interlock.fleet")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Where the settings came from, watched since before they were read. `read` reads them again, without the models' files, and
    raises SettingsError."""

    watched: WatchedFile
    read: Callable[[], Settings]


_Said = tuple[Settings, Mapping[str, Engines]]


class Sources:
    """What names engines for a membership. `read_engines` reads a model's file of them, and raises SettingsError. `poll_s` is how
    often files are looked at."""

    def __init__(
        self,
        settings: Settings,
        membership: Membership,
        troubles: Troubles,
        *,
        read_engines: Callable[[ModelSettings, Path], Engines],
        file: SettingsFile | None,
        poll_s: float,
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._read_engines = read_engines
        self._models = {model.name: model for model in settings.models}
        self._files = EnginesFiles(self._read, self._file_engines, troubles, poll_s)
        self._file: Followed[_Said] | None = None
        if file is not None:
            read = partial(self._read_all, file.read)
            self._file = Followed(file.watched, "settings", troubles, read=read, take=self._reloaded, poll_s=poll_s)
        self._take()

    @property
    def reload(self) -> Callable[[], None] | None:
        """Reads the settings file and the files of engines soon; None where there is no settings file."""
        return self._ask if self._file is not None else None

    def _ask(self) -> None:
        if self._file is not None:
            self._file.ask()
        self._files.ask()

    async def run(self) -> None:
        """Follows files for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._files.run())
            if self._file is not None:
                group.create_task(self._file.run())

    def _read_all(self, read: Callable[[], Settings]) -> _Said:
        """The settings, with the files of engines that are new in them: an engine that moves from one to the other stays."""
        settings = read()
        filed: dict[str, Engines] = {}
        for model in settings.models:
            known = self._models.get(model.name)
            if known is not None and model.engines_file is not None and model.engines_file != known.engines_file:
                with contextlib.suppress(SettingsError):  # told by who follows it
                    filed[model.name] = self._read(model.name, model.engines_file)
        return settings, filed

    def _reloaded(self, said: _Said) -> None:
        settings, filed = said
        for model, engines in filed.items():
            self._membership.file_engines(model, engines)
        if keys := list(needs_restart(self._settings, settings)):
            _log.warning("settings that need a restart are not taken", keys=keys)
        self._models |= {model.name: model for model in settings.models if model.name in self._models}
        self._take()
        _log.info("settings read: the engines that they name are taken")

    def _take(self) -> None:
        for model in self._models.values():
            self._membership.list_engines(model.name, model.engines)
        self._files.follow({each.name: each.engines_file for each in self._models.values() if each.engines_file is not None})
        self._membership.apply()

    def _read(self, model: str, path: Path) -> Engines:
        (settings,) = [each for each in self._settings.models if each.name == model]  # its format is that of the start
        return self._read_engines(settings, path)

    def _file_engines(self, model: str, engines: Engines) -> None:
        self._membership.file_engines(model, engines)
        self._membership.apply()
