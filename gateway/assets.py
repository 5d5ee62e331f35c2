"""The dashboards and rules that come with an installation, written where Grafana and Prometheus are told to look.

They exist once: in a checkout as `grafana/` and `deploy/prometheus/rules/`, in an installed wheel below `share/interlock`, where
pyproject.toml puts them.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from gateway.wire.jsonio import decode, dumps

RUNBOOK = "docs/operating.md"
"""What the rules call the runbook: a document of the project, as they do not know where it can be read."""
_CHECKOUT = Path(__file__).parents[1]
_FOLDERS: Mapping[str, str] = {"grafana": "grafana", "prometheus": "deploy/prometheus/rules"}
_SHARED = "share/interlock/"


class NoAssets(Exception):
    """The installation has none; the message is for whoever made it."""


class AssetsChanged(Exception):
    """Files are there that say something else, or what is no file; the message names them."""


def shipped() -> dict[str, bytes]:
    """What each file holds, by its path below the folder that is written: `grafana/overview.json`, `prometheus/alerts.yml`, …

    Raises:
        NoAssets: the installation has none.
    """
    if (_CHECKOUT / "pyproject.toml").is_file():
        found = {
            f"{name}/{file.name}": file
            for name, folder in _FOLDERS.items()
            for file in (_CHECKOUT / folder).glob("*")
            if file.suffix in (".json", ".yml")
        }
    else:
        installed = metadata.files("interlock") or []
        found = {str(each).rpartition(_SHARED)[2]: Path(str(each.locate())) for each in installed if _SHARED in str(each)}
    if not found:
        raise NoAssets("this installation has no dashboards and rules with it: install the wheel again")
    return {name: file.read_bytes() for name, file in sorted(found.items())}


def with_runbook(files: Mapping[str, bytes], url: str) -> dict[str, bytes]:
    """The files with links to the runbook, which can be read at this URL: an alert's `runbook_url`, and one above each dashboard.
    Without it alerts have its name, as `runbook`, and dashboards no link, as it would lead nowhere."""
    return {name: _linked(name, content, url) for name, content in files.items()}


def _linked(name: str, content: bytes, url: str) -> bytes:
    if not name.endswith(".json"):
        return content.replace(b"runbook: ", b"runbook_url: ").replace(RUNBOOK.encode(), url.encode())
    board = decode(content)
    link = {"title": "Runbook", "type": "link", "icon": "doc", "tooltip": "What each alert means and what to do", "url": url}
    board["links"].append({**link, "asDropdown": False, "includeVars": False, "keepTime": False, "tags": [], "targetBlank": True})
    return dumps(board, indent=2, sort_keys=True).encode() + b"\n"


def write(files: Mapping[str, bytes], folder: Path, *, force: bool = False) -> list[str]:
    """Writes those that are not there, or not the same, and gives their names. Without `force` it replaces none, and then writes
    none at all where one would have to be. Each is there whole or not at all, and none is where one could not be written.

    Raises:
        AssetsChanged: some are there and say something else, or are no files.
        OSError: the folder cannot be written.
    """
    there = {name: mode for name in files if (mode := _mode(folder / name)) is not None}
    if odd := [name for name, mode in there.items() if not stat.S_ISREG(mode)]:
        raise AssetsChanged(f"{folder}: {', '.join(odd)}: no regular file, which is not written through: remove it first")
    same = {name for name in there if (folder / name).read_bytes() == files[name]}
    if (changed := [name for name in there if name not in same]) and not force:
        raise AssetsChanged(f"{folder}: {', '.join(changed)} say something else. `--force` replaces what was changed there")
    written = [name for name in files if name not in same]
    _replace({folder / name: files[name] for name in written})
    return written


def _mode(path: Path) -> int | None:
    """What is there, a link itself being one; None: nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _replace(contents: Mapping[Path, bytes]) -> None:
    """Writes all beside their places first, under names that neither Grafana nor Prometheus reads."""
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, part in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                file.write(contents[path])
        for path, part in parts.items():
            part.replace(path)
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
