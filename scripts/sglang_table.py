"""Writes tests/fakes/sglang.yaml from a wheel of SGLang, or the folder that one was unpacked to; with `--check`, compares.

    pip download --no-deps --dest .cache sglang==0.5.23
    python scripts/sglang_table.py .cache/sglang-0.5.23-*.whl [--check]

The sources are read, never imported: SGLang needs a GPU's libraries for that. What is taken is the names of fields, their types,
and where they stand.
"""

import ast
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

FILE = Path(__file__).parent.parent / "tests" / "fakes" / "sglang.yaml"
HEAD = """\
# What SGLang's HTTP server takes and gives: names, types, and the line of the wheel where each stands.
# Made by scripts/sglang_table.py from the wheel; do not edit.
"""
CONTRACT = "sglang/api/v1/api_types.py"
SAMPLING = "sglang/srt/sampling/sampling_params.py"
PROTOCOL = "sglang/srt/entrypoints/openai/protocol.py"
SERVER = "sglang/srt/entrypoints/http_server.py"
MANAGER = "sglang/srt/managers/tokenizer_manager.py"
CLASSES = {
    "request": (CONTRACT, "GenerateRequest"),
    "sampling_params": (CONTRACT, "SamplingParams"),
    "answer": (CONTRACT, "GenerateResponse"),
    "meta_info": (CONTRACT, "GenerateMetaInfo"),
    "finish_abort": (CONTRACT, "FinishAbort"),
    "tokenize": (PROTOCOL, "TokenizeRequest"),
    "tokenized": (PROTOCOL, "TokenizeResponse"),
    "model_card": (PROTOCOL, "ModelCard"),
    "error": (PROTOCOL, "ErrorResponse"),
}
ROUTES = ("/generate", "/health", "/tokenize", "/v1/models")
_VERSION = re.compile(r"sglang-([0-9][^-/]*)")

Read = Callable[[str], str]
Table = dict[str, dict[str, dict[str, str]]]


def table(read: Read) -> Table:
    """The sections of the table. Raises LookupError where a class or a route that is asked for is not there."""
    trees = {path: ast.parse(read(path)) for path in {SERVER, MANAGER, SAMPLING, *(path for path, _ in CLASSES.values())}}
    sections = {name: _fields(trees[path], path, found) for name, (path, found) in CLASSES.items()}
    served = _fields(trees[SAMPLING], SAMPLING, "SamplingParams")
    sections["sampling_params"] = {
        # `choice` is the other server's alone: this one has no field for it.
        name: about
        for name, about in sections["sampling_params"].items()
        if name in served
    }
    sections["meta_info"] = _meta(trees[MANAGER]) | sections["meta_info"]
    sections["routes"] = _routes(trees[SERVER])
    return sections


def _fields(tree: ast.Module, path: str, name: str) -> dict[str, dict[str, str]]:
    """The annotated fields of a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
            return {
                each.target.id: {"type": ast.unparse(each.annotation), "at": f"{path}:{each.lineno}"}
                for each in fields
                if isinstance(each.target, ast.Name)
            }
    raise LookupError(f"{path} has no class {name}")


def _meta(tree: ast.Module) -> dict[str, dict[str, str]]:
    """What the Python server adds to `meta_info` for every answer: the literal that its batches of outputs begin with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "_handle_batch_output":
            for each in ast.walk(node):
                if isinstance(each, ast.Assign) and _named(each.targets) == "meta_info" and isinstance(each.value, ast.Dict):
                    keys = [key for key in each.value.keys if isinstance(key, ast.Constant)]
                    return {str(key.value): {"type": "Any", "at": f"{MANAGER}:{key.lineno}"} for key in keys}
    raise LookupError(f"{MANAGER} makes no meta_info")


def _named(targets: list[ast.expr]) -> str | None:
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _routes(tree: ast.Module) -> dict[str, dict[str, str]]:
    """Where the routes that are used are declared."""
    found = {path: {"type": method, "at": f"{SERVER}:{line}"} for path, method, line in _declared(tree) if path in ROUTES}
    if missing := set(ROUTES) - found.keys():
        raise LookupError(f"{SERVER} has no route {sorted(missing)}")
    return dict(sorted(found.items()))


def _declared(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.args:
                    path = each.args[0]
                    if isinstance(path, ast.Constant) and isinstance(path.value, str):
                        yield path.value, each.func.attr, each.lineno


def text_of(source: Path) -> str:
    """The table of a wheel, or of the folder that one was unpacked to, as YAML."""
    if source.is_dir():
        names = [each.name for each in source.glob("sglang-*.dist-info")]
        sections = table(lambda path: (source / path).read_text())
    else:
        names = [source.name]
        with zipfile.ZipFile(source) as wheel:
            sections = table(lambda path: wheel.read(path).decode())
    version = next((found[1].removesuffix(".dist") for name in names if (found := _VERSION.match(name))), None)
    if version is None:
        raise LookupError(f"{source} does not say which version it is")
    return HEAD + yaml.safe_dump({"version": version, **sections}, sort_keys=False, default_flow_style=None, width=200)


def main() -> int:
    """Writes or checks; 1 where they differ."""
    source, *options = sys.argv[1:]
    text = text_of(Path(source))
    if "--check" in options:
        return int(FILE.read_text() != text)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
