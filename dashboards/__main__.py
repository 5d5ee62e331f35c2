"""`python -m dashboards`: writes each dashboard as JSON. With --check: says whether what is there is what would be written."""

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

import dashboards
from dashboards.parts import UID

FOLDER = Path(__file__).parents[1] / "grafana"


def made() -> dict[str, str]:
    """The JSON of each module's `dashboard()`, by the name of its file."""
    modules = [import_module(f"{dashboards.__name__}.{each.name}") for each in pkgutil.iter_modules(dashboards.__path__)]
    boards = [module.dashboard() for module in modules if hasattr(module, "dashboard")]
    encoder = JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False)
    return {f"{board.uid.removeprefix(UID)}.json": encoder.encode(board) + "\n" for board in boards}


def main(arguments: list[str]) -> int:
    """The exit code."""
    there = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.json")}
    wanted = made()
    if "--check" in arguments:
        wrong = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
        for name in wrong:
            print(f"grafana/{name} is out of date: run `make dashboards`", file=sys.stderr)
        return 1 if wrong else 0
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
