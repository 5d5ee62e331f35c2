"""A model's `engines_file`: a list of engines in a file of its own, which may change while the gateway runs.

Invariant: any file gives engines that could stand under `engines` of that model, or one `SettingsError` with every problem in it.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from engines.base import Traits
from gateway.errors import SettingsError
from gateway.events import NO_ENGINE
from gateway.settings import EngineSettings, ModelSettings, message_of
from gateway.settings_base import Context
from gateway.settings_fit import engine_misfits, rank_ids
from gateway.settings_tree import KeyPath, SettingsTree, read_list


def load_engines(
    file: Path, model: ModelSettings, environ: Mapping[str, str], kinds: Mapping[str, Traits]
) -> tuple[EngineSettings, ...]:
    """The engines of a model's file, of which there may be none. Raises SettingsError with everything that is wrong."""
    tree = read_list(file)
    found: list[tuple[KeyPath, str]] = list(_unnamed(tree))
    found += engine_misfits(tree.values, (), model.format, model.tools, kinds)
    engines: tuple[EngineSettings, ...] = ()
    try:
        engines = TypeAdapter(tuple[EngineSettings, ...]).validate_python(
            tuple(tree.values), context=Context(file.absolute().parent, environ, tuple(kinds))
        )
    except ValidationError as error:
        told = {problem.path for problem in tree.problems}
        wrong = error.errors(include_url=False)
        found += [(each["loc"], message_of(each, ("models", "engines"))) for each in wrong if each["loc"] not in told]
    problems = [*tree.problems, *(tree.problem(at, message) for at, message in found)]
    if problems:
        raise SettingsError(tuple(str(each) for each in sorted(problems, key=lambda each: (each.place.line, each.place.column))))
    return engines


def _unnamed(tree: SettingsTree) -> list[tuple[KeyPath, str]]:
    """Ids that are missing, reserved or taken: a position is no name in a list that changes."""
    found: list[tuple[KeyPath, str]] = []
    taken: dict[str, int] = {}
    for index, row in enumerate(tree.values):
        if not isinstance(row, dict):
            continue
        name = row.get("id")
        if name is None or name == "":
            found.append(((index, "id"), "is missing: in a list that changes a position is no name"))
        elif name == NO_ENGINE:
            found.append(((index, "id"), f"`{NO_ENGINE}` is what metrics say where there is no engine: take another name"))
        clash = next((each for each in rank_ids(name, row.get("ranks")) if taken.setdefault(str(each), index) != index), None)
        if clash is not None and name:
            found.append(((index, "id"), f"`{clash}` is taken by [{taken[str(clash)]}].id"))
    return found
