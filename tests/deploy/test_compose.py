"""The demonstration's files without a Docker engine: they hold to their schemas, agree with each other, and open nothing that
they need not."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.services import UNPACKED, program

from engines.launch.llamacpp import main as launch

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
SETTINGS = ROOT / "deploy/interlock.compose.yaml"
PROFILES = {(): set(), ("cpu",): {"gateway", "engine"}, ("observability",): {"prometheus", "grafana"}}
PROFILES["cpu", "observability"] = PROFILES["cpu",] | PROFILES["observability",]
SERVICES = sorted(PROFILES["cpu", "observability"])


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read(FILE)


def read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content


def docker_compose(*arguments: str) -> str:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(UNPACKED / "lib/python3/dist-packages"), "LC_ALL": "C.UTF-8"}
    command = [program("docker-compose"), "--file", str(FILE), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_to_the_schema_of_compose_files() -> None:
    tool = Path(sys.executable).parent / "check-jsonschema"
    command = [str(tool), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("profiles", list(PROFILES), ids=lambda profiles: "+".join(profiles) or "none")
def test_docker_compose_reads_it_with_every_profile(profiles: tuple[str, ...]) -> None:
    chosen = [word for name in profiles for word in ("--profile", name)]
    assert set(docker_compose(*chosen, "config", "--services").split()) >= PROFILES[profiles]
    assert yaml.safe_load(docker_compose(*chosen, "config"))["services"].keys() >= PROFILES[profiles]


def test_each_service_is_in_its_profile_and_waits_for_none_of_another(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for (profile,) in (("cpu",), ("observability",)):
        assert {name for name, service in services.items() if service["profiles"] == [profile]} == PROFILES[profile,]
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert services[name]["profiles"] == service["profiles"]
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services[name]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_no_more_than_it_must(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus", "pids_limit"} <= service.keys()
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "user", "devices"} & service.keys()
    for mount in service.get("volumes", []):
        source, _, mode = [*mount.split(":"), ""][:3]
        assert "docker.sock" not in source
        assert mode == "ro" if source.startswith(".") else source in compose["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(compose: dict[str, Any], name: str) -> None:
    for port in compose["services"][name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+_PORT:-(\d+)\}:\1", port), port


def test_the_engine_is_reached_by_nobody_outside(compose: dict[str, Any]) -> None:
    engine = compose["services"]["engine"]
    assert "ports" not in engine
    assert [compose["networks"][name] for name in engine["networks"]] == [{"internal": True}]


def test_images_of_others_are_pinned(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values() if "build" not in service]
    assert len(images) == 2
    assert all(re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", image) for image in images), images


def test_what_is_mounted_is_there(compose: dict[str, Any]) -> None:
    sources = [mount.split(":")[0] for service in compose["services"].values() for mount in service.get("volumes", [])]
    missing = [source for source in sources if source.startswith(".") and not (ROOT / source).exists()]
    assert not missing


def test_the_gateway_may_finish_its_answers(compose: dict[str, Any]) -> None:
    grace_s = int(compose["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= read(SETTINGS)["server"]["drain_s"] + 5


def test_the_settings_name_the_engine_as_it_is_started(compose: dict[str, Any]) -> None:
    settings = read(SETTINGS)
    (model,) = settings["models"]
    (engine,) = model["engines"]
    command = compose["services"]["engine"]["command"]
    started = dict(zip(command[::2], command[1::2], strict=True))
    assert engine["url"] == f"http://engine:{started['--port']}"
    assert model["source"] == started["--model"]
    assert f"127.0.0.1:{started['--port']}/health" in compose["services"]["engine"]["healthcheck"]["test"][-1]
    server = settings["server"]
    assert (server["host"], server["admin_host"]) == ("0.0.0.0", "0.0.0.0")
    published = {int(port.rsplit(":", 1)[1]) for port in compose["services"]["gateway"]["ports"]}
    assert published == {8080, server["admin_port"]}


def test_the_engine_takes_the_command(compose: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    service = compose["services"]["engine"]
    assert service["entrypoint"] == ["python", "-m", launch.__module__]
    assert launch(service["command"]) == 1  # every option is known, and the model is in the image alone
    assert capsys.readouterr().err == "error: cannot read /models/SmolLM2-135M-Instruct.Q4_1.gguf: No such file or directory\n"


def test_promtool_finds_no_fault_in_the_settings_of_prometheus() -> None:
    command = [program("promtool"), "check", "config", str(ROOT / "deploy/prometheus/prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_asks_what_is_there(compose: dict[str, Any]) -> None:
    config, settings = read(ROOT / "deploy/prometheus/prometheus.yml"), read(SETTINGS)
    asked = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert asked["interlock"] == [f"gateway:{settings['server']['admin_port']}"]
    assert asked["llamacpp"] == [settings["models"][0]["engines"][0]["url"].removeprefix("http://")]
    prometheus = set(compose["services"]["prometheus"]["networks"])
    assert all(prometheus & set(compose["services"][name]["networks"]) for name in ("gateway", "engine", "grafana"))
    assert "--config.file=/etc/prometheus/prometheus.yml" in compose["services"]["prometheus"]["command"]
    assert "./deploy/prometheus:/etc/prometheus:ro" in compose["services"]["prometheus"]["volumes"]


def mounts_of_grafana(compose: dict[str, Any]) -> dict[str, Path]:
    """Where Grafana sees what: folders of its container to those here."""
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    return {target: ROOT / source for source, target, *_ in mounts if source.startswith(".")}


def test_grafana_has_its_source_of_data(compose: dict[str, Any]) -> None:
    (file,) = mounts_of_grafana(compose)["/etc/grafana/provisioning/datasources"].iterdir()
    content = read(file)
    (source,) = content["datasources"]
    assert content["apiVersion"] == 1
    assert (source["uid"], source["type"], source["isDefault"]) == ("prometheus", "prometheus", True)
    assert source["url"] == "http://prometheus:9090"


def test_grafana_finds_the_dashboards(compose: dict[str, Any]) -> None:
    mounts = mounts_of_grafana(compose)
    (file,) = mounts["/etc/grafana/provisioning/dashboards"].iterdir()
    content = read(file)
    (provider,) = content["providers"]
    assert content["apiVersion"] == 1
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    assert mounts[provider["options"]["path"]] == ROOT / "grafana"
    home = Path(compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounts[str(home.parent)] / home.name).is_file()
