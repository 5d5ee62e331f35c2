"""The rules that keep the parts apart, checked on the syntax tree of every module. Each rule is shown to fail on a bad sample."""

import ast
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = ("gateway.wire", "gateway.dialects", "gateway.prompt", "gateway.formats", "gateway.routing")
SHELL = ("gateway.prompt.pool", "gateway.prompt.worker")  # what runs a pure part, the renderer, in a process that can be killed
# They wire the rest; nothing imports them.
ROOT_MODULES = ("gateway.app", "gateway.wiring", "gateway.cli", "gateway.up", "gateway.live", "gateway.process", "gateway.start")
LANGUAGE = ("gateway.wire", "gateway.request", "gateway.made", "gateway.events", "gateway.errors", "gateway.routing.view")
IMPURE_LIBRARIES = frozenset(
    "asyncio aiohttp anyio fastapi http httptools httpx os random requests secrets signal socket ssl starlette "  # noqa: SIM905
    "subprocess tempfile threading time uuid uvicorn uvloop".split()  # one line a list, not one line a word
)
JSON_LIBRARIES = frozenset({"json", "orjson", "simplejson", "ujson", "rapidjson"})
OPTIONAL = frozenset({"xllamacpp", "transformers", "opentelemetry"})
OF_OPTIONAL = ("gateway.observe.otlp",)  # modules of ours that begin with such imports: nothing imports them on top
OF_JINJA = ("gateway.prompt.template", "gateway.server.page")  # models' templates, sandboxed; our own page, escaped
MUTABLE = frozenset({"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"})
VAGUE = frozenset({"utils", "util", "helpers", "helper", "manager", "service", "common", "misc"})

Violations = Iterator[str]


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every dotted name that is imported, `from a import b` as `a.b`: b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{'.' * node.level}{node.module or ''}.{alias.name}", node.lineno) for alias in node.names)


def arrows(name: str, tree: ast.Module, _: str) -> Violations:
    """Server, session, fleet, observe -> the pure packages -> wire, request, events, errors."""
    for target, line in imported(tree):
        if within(target, ("gateway", "engines", "lab")) and not may_import(name, target):
            yield f"{line}: {name} may not import {target}"


def may_import(name: str, target: str) -> bool:
    if within(name, ("engines",)):
        return within(target, ("engines", "gateway.request", "gateway.wire", "gateway.errors"))
    if within(name, ("lab",)):
        return within(target, ("lab", *LANGUAGE, *PURE))
    if within(name, LANGUAGE):
        return within(target, LANGUAGE)
    if within(name, PURE):
        return within(target, (*LANGUAGE, *PURE))
    if within(name, ROOT_MODULES):
        return not within(target, ("lab",))
    return within(target, ("gateway", "engines.base")) and not within(target, ROOT_MODULES)


def pure(name: str, tree: ast.Module, _: str) -> Violations:
    """A pure package has no loop, no network, no clock, no randomness, and no file of its own choosing."""
    if not within(name, PURE) or name in SHELL:
        return
    for target, line in imported(tree):
        impure = target.split(".")[0] in IMPURE_LIBRARIES or target.startswith("urllib.request")
        if impure and target != "os.path.commonprefix":
            yield f"{line}: a pure module imports {target}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            yield f"{node.lineno}: a pure module reads a clock"
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"{node.lineno}: a pure module waits"


def one_home(name: str, tree: ast.Module, _: str) -> Violations:
    """JSON, templates and OpenTelemetry have one module each."""
    for target, line in imported(tree):
        library = target.split(".")[0]
        is_json = library in JSON_LIBRARIES or within(target, ("msgspec.json",))
        if is_json and name != "gateway.wire.jsonio":
            yield f"{line}: only gateway.wire.jsonio imports {target}"
        if library == "opentelemetry" and name != "gateway.observe.otlp":
            yield f"{line}: only gateway.observe.otlp imports {target}"
        if library == "jinja2" and name not in OF_JINJA:
            yield f"{line}: only {' and '.join(OF_JINJA)} import {target}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "msgspec.json" and name != "gateway.wire.jsonio":
            yield f"{node.lineno}: only gateway.wire.jsonio uses msgspec.json"


def no_globals(name: str, tree: ast.Module, _: str) -> Violations:
    """No `global`, and nothing mutable at module level outside the composition root: tables are typed `Mapping`, so that mypy
    finds who would change one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global"
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        called = ast.unparse(value.func).split(".")[-1].split("[")[0] if isinstance(value, ast.Call) else ""
        literal = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        read_only = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith(("Mapping[", "Sequence["))
        if (literal or called in MUTABLE) and not read_only and name != "gateway.app":
            yield f"{node.lineno}: mutable state of the module"
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if ast.unparse(decorator).split("(")[0].split(".")[-1] in ("cache", "lru_cache"):
                yield f"{node.lineno}: a cache that lives as long as the module"


def imports_on_top(_: str, tree: ast.Module, __: str) -> Violations:
    """Only optional extras are imported inside functions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for target, line in imported(function):
                if target.split(".")[0] not in OPTIONAL and not within(target, OF_OPTIONAL):
                    yield f"{line}: {target} is imported inside {function.name}"
    for node in tree.body:
        for target, line in imported(node) if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if within(target, OF_OPTIONAL):
                yield f"{line}: {target} is imported where its packages may not be installed"


def size(_: str, tree: ast.Module, source: str) -> Violations:
    """About 400 lines a module, 60 a function."""
    if (lines := len(source.splitlines())) > 450:
        yield f"the module has {lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > 60:
                yield f"{node.lineno}: {node.name} has {length} lines"


def excepts(_: str, tree: ast.Module, source: str) -> Violations:
    """What is caught has a name; `except Exception` has a reason on its line; `BaseException` is raised again."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler):
            continue
        line = source.splitlines()[handler.lineno - 1]
        if handler.type is None:
            yield f"{handler.lineno}: a bare except"
        elif is_broad(handler) and not line.partition("#")[2].strip():
            yield f"{handler.lineno}: except Exception without a reason on its line"
        elif "BaseException" in caught(handler) and not any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
            yield f"{handler.lineno}: BaseException is not raised again"


def caught(handler: ast.ExceptHandler) -> set[str]:
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(each).split(".")[-1] for each in names if each is not None}


def is_broad(handler: ast.ExceptHandler) -> bool:
    return "Exception" in caught(handler)


def words(name: str, tree: ast.Module, _: str) -> Violations:
    """A module says what it is for: a docstring, and a name that means something. Imports say where from."""
    if not ast.get_docstring(tree):
        yield "no docstring"
    if vague := VAGUE & set(name.replace("_", ".").split(".")):
        yield f"a name that says nothing: {', '.join(vague)}"
    for target, line in imported(tree):
        if target.startswith("."):
            yield f"{line}: a relative import"


RULES: tuple[Callable[[str, ast.Module, str], Violations], ...] = (
    arrows,
    pure,
    one_home,
    no_globals,
    imports_on_top,
    size,
    excepts,
    words,
)


def modules() -> dict[str, str]:
    files = [file for package in ("gateway", "engines", "lab") for file in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file.read_text() for file in files}


def cycle(sources: dict[str, str]) -> list[str]:
    """The modules of one import cycle, or none."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        targets = {target for target, _ in imported(ast.parse(source))}
        graph[name] = {each if each in sources else each.rpartition(".")[0] for each in targets} & sources.keys() - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[str, ast.Module, str], Violations]) -> None:
    found = [f"{name}:{line}" for name, source in modules().items() for line in rule(name, ast.parse(source), source)]
    assert not found, "\n".join(found)


def test_every_folder_is_a_package() -> None:
    """Else its modules miss from the coverage report where no test imports them."""
    folders = {file.parent for package in ("gateway", "engines", "lab") for file in (ROOT / package).rglob("*.py")}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]


def test_the_layout_names_every_module_and_package_of_the_gateway_and_none_else() -> None:
    layout = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("## Layout")[2].partition("gateway/\n")[2].partition("\nengines/")[0]
    )
    lines = [line.removeprefix("  ").partition("   ")[0] for line in layout.splitlines() if line[2:3].strip()]
    named = {name for line in lines for name in line.split() if name != "pure"}
    files = {file.name for file in (ROOT / "gateway").glob("*.py") if not file.name.startswith(("__", "settings"))}
    packages = {f"{folder.parent.name}/" for folder in (ROOT / "gateway").glob("*/__init__.py")}
    assert named == files | packages | {"settings*.py"}


def test_no_import_cycle() -> None:
    assert not cycle(modules())


def test_broad_excepts_are_few() -> None:
    trees = {name: ast.parse(source) for name, source in modules().items()}
    handlers = [(name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    found = [f"{name}:{handler.lineno}" for name, handler in handlers if is_broad(handler)]
    assert len(found) <= 6, found


SAMPLES = [
    (arrows, "gateway.wire.sse", "from gateway.formats import base"),
    (arrows, "gateway.formats.machine", "from gateway.server.routes import x"),
    (arrows, "gateway.routing.cost", "import engines.base"),
    (arrows, "gateway.session", "from engines.llamacpp import LlamaCpp"),
    (arrows, "gateway.server.routes", "from gateway import app"),
    (arrows, "gateway.app", "import lab.replay"),
    (arrows, "engines.llamacpp", "from gateway.settings import Settings"),
    (arrows, "lab.traces", "from gateway.session import Session"),
    (pure, "gateway.prompt.template", "import time"),
    (pure, "gateway.formats.machine", "from random import choice"),
    (pure, "gateway.dialects.openai_chat", "from http import client"),
    (pure, "gateway.dialects.openai_chat", "import urllib.request"),
    (pure, "gateway.prompt.template", "from datetime import datetime\nx = datetime.now()"),
    (pure, "gateway.wire.sse", "async def f(): pass"),
    (one_home, "gateway.session", "import json"),
    (one_home, "gateway.session", "from msgspec import json"),
    (one_home, "gateway.session", "import msgspec\nmsgspec.json.encode(1)"),
    (one_home, "gateway.formats.machine", "from jinja2 import Template"),
    (no_globals, "gateway.session", "def f():\n    global x\n    x = 1"),
    (no_globals, "gateway.session", "seen = []"),
    (no_globals, "gateway.session", "seen: dict[str, int] = {}"),
    (no_globals, "gateway.session", "seen = collections.defaultdict(list)"),
    (no_globals, "gateway.session", "seen = dict[str, int]()"),
    (no_globals, "gateway.session", "@functools.lru_cache(8)\ndef f(): pass"),
    (one_home, "gateway.observe.tracing", "from opentelemetry.trace import SpanKind"),
    (imports_on_top, "gateway.session", "def f():\n    import os"),
    (imports_on_top, "gateway.wiring", "from gateway.observe.otlp import Otlp"),
    (size, "gateway.session", "x = 1\n" * 451),
    (size, "gateway.session", "def f():\n" + "    x = 1\n" * 60),
    (excepts, "gateway.session", "try: f()\nexcept: pass"),
    (excepts, "gateway.session", "try: f()\nexcept Exception: pass"),
    (excepts, "gateway.session", "try: f()\nexcept (KeyError, Exception): pass"),
    (excepts, "gateway.session", "try: f()\nexcept BaseException: pass"),
    (words, "gateway.session", "x = 1"),
    (words, "gateway.http_utils", '"""Doc."""'),
    (words, "gateway.session", '"""Doc."""\nfrom . import errors'),
]


@pytest.mark.parametrize(("rule", "name", "source"), SAMPLES)
def test_a_rule_can_fail(rule: Callable[[str, ast.Module, str], Violations], name: str, source: str) -> None:
    assert list(rule(name, ast.parse(source), source))


def test_a_cycle_is_found() -> None:
    assert cycle({"gateway.a": "from gateway import b", "gateway.b": "from gateway.c import x", "gateway.c": "import gateway.a"})


def test_every_rule_has_a_sample_and_there_is_something_to_check() -> None:
    assert {rule for rule, _, _ in SAMPLES} == set(RULES)
    assert {"gateway.errors", "gateway.wire.sse", "engines.base"} <= modules().keys()
