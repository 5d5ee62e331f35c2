"""`interlock assets`: it writes what came with the installation, and nothing over what was changed."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.assets import RUNBOOK, AssetsChanged, shipped, with_runbook, write
from gateway.cli import app

URL = "https://wiki.example/operating"
FILES = {"grafana/a.json": b'{"links": []}', "prometheus/b.yml": b"runbook: docs/operating.md#down\n"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["assets", *arguments])


def there(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")}


def test_what_is_shipped_are_the_dashboards_and_rules() -> None:
    names = set(shipped())
    assert {"grafana/overview.json", "grafana/formats.json"} < names
    assert all(name.endswith((".json", ".yml")) for name in names)


def test_it_is_written_once_and_then_found_to_be_there(tmp_path: Path) -> None:
    first, again = run(str(tmp_path / "new")), run(str(tmp_path / "new"))
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert there(tmp_path / "new") == shipped()
    assert f"{tmp_path / 'new' / 'grafana/overview.json'}: written" in first.output
    assert ": written" not in again.output


def test_what_was_changed_is_replaced_only_by_force(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "grafana/a.json").write_text("mine")
    (tmp_path / "prometheus/b.yml").unlink()
    with pytest.raises(AssetsChanged, match=r"grafana/a\.json say something else\. `--force`"):
        write(FILES, tmp_path)
    assert there(tmp_path) == {"grafana/a.json": b"mine"}  # and nothing beside it either
    assert write(FILES, tmp_path, force=True) == list(FILES)
    assert there(tmp_path) == FILES


def test_the_command_says_what_it_would_have_replaced(tmp_path: Path) -> None:
    assert run(str(tmp_path)).exit_code == 0
    (tmp_path / "grafana/overview.json").write_text("mine")
    refused = run(str(tmp_path))
    assert refused.exit_code == 2
    assert "grafana/overview.json say something else" in refused.output
    assert (tmp_path / "grafana/overview.json").read_text() == "mine"
    assert run(str(tmp_path), "--force").exit_code == 0
    assert there(tmp_path) == shipped()


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("odd", ["link", "dangling link", "pipe", "folder"])
def test_nothing_is_written_through_what_is_no_file(tmp_path: Path, odd: str, force: list[str]) -> None:
    at, elsewhere = tmp_path / "new" / "grafana" / "overview.json", tmp_path / "elsewhere"
    at.parent.mkdir(parents=True)
    if odd == "pipe":
        os.mkfifo(at)
    elif odd == "folder":
        at.mkdir()
    else:
        at.symlink_to(elsewhere)
    if odd == "link":
        elsewhere.write_text("mine")
    refused = run(str(tmp_path / "new"), *force)
    assert refused.exit_code == 2
    assert "grafana/overview.json: no regular file" in refused.output
    assert [file.name for file in at.parent.iterdir()] == ["overview.json"]
    assert (elsewhere.read_text() if odd == "link" else elsewhere.exists()) == ("mine" if odd == "link" else False)


def test_where_one_cannot_be_written_the_others_stay_as_they_were(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / f"prometheus/.b.yml.{os.getpid()}").mkdir()  # in the way of what is written beside its place first
    with pytest.raises(FileExistsError):
        write(dict.fromkeys(FILES, b"new"), tmp_path, force=True)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES
    assert [file.name for file in (tmp_path / "grafana").iterdir()] == ["a.json"]


def test_others_can_read_what_is_written_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write(FILES, tmp_path)
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in FILES} == {0o644}


def test_no_folder_is_not_the_one_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("")
    assert refused.exit_code == 2
    assert "names no folder" in refused.output
    assert there(tmp_path) == {}
    assert run(".").exit_code == 0


def test_what_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failed = run(str(tmp_path / "file"))
    assert failed.exit_code == 1
    assert "cannot write" in failed.output


def test_the_runbook_can_be_somewhere(tmp_path: Path) -> None:
    assert with_runbook(FILES, URL)["prometheus/b.yml"] == b"runbook_url: https://wiki.example/operating#down\n"
    assert run(str(tmp_path), "--runbook", URL).exit_code == 0
    written = there(tmp_path)
    assert not any(RUNBOOK.encode() in content for content in written.values())
    for name, content in shipped().items():
        if name.startswith("grafana/"):
            board, linked = json.loads(content), json.loads(written[name])
            *links, runbook = linked.pop("links")
            assert (runbook["title"], runbook["url"]) == ("Runbook", URL)
            assert links == board.pop("links")
            assert linked == board


@pytest.mark.parametrize("url", ["operating.md", "file:///etc", 'https://a/"b', "https://a b"])
def test_the_runbook_is_a_url(tmp_path: Path, url: str) -> None:
    refused = run(str(tmp_path), "--runbook", url)
    assert refused.exit_code == 2
    assert there(tmp_path) == {}
