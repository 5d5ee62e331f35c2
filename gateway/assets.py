"""The dashboards and rules that come with an installation, written where Grafana and Prometheus are told to look.

They exist once: in a checkout as `grafana/` and `deploy/prometheus/rules/`, in an installed wheel below `share/interlock`, where
pyproject.toml puts them.
"""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

RUNBOOK = "docs/operating.md"
"""What the dashboards and rules call the runbook: a document of the project, as they do not know where it can be read."""
_CHECKOUT = Path(__file__).parents[1]
_FOLDERS: Mapping[str, str] = {"grafana": "grafana", "prometheus": "deploy/prometheus/rules"}
_SHARED = "share/interlock/"


class NoAssets(Exception):
    """The installation has none; the message is for whoever made it."""


class AssetsChanged(Exception):
    """Files are there that say something else; the message names them."""


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
    """The files with a URL in the place of the runbook's name."""
    return {name: content.replace(RUNBOOK.encode(), url.encode()) for name, content in files.items()}


def write(files: Mapping[str, bytes], folder: Path, *, force: bool = False) -> list[str]:
    """Writes those that are not there, or not the same, and gives their names. Without `force` it replaces none, and then writes
    none at all where one would have to be.

    Raises:
        AssetsChanged: some are there and say something else.
        OSError: the folder cannot be written.
    """
    there = {name: (folder / name).read_bytes() for name in files if (folder / name).exists()}
    changed = [name for name, content in there.items() if content != files[name]]
    if changed and not force:
        raise AssetsChanged(f"{folder}: {', '.join(changed)} say something else. `--force` replaces what was changed there")
    written = [name for name, content in files.items() if there.get(name) != content]
    for name in written:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name])
    return written
