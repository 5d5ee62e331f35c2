"""`interlock assets`: it writes what came with the installation, and nothing over what was changed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.assets import RUNBOOK, AssetsChanged, shipped, with_runbook, write
from gateway.cli import app

URL = "https://wiki.example/operating"
FILES = {"grafana/a.json": b'{"query": "docs/operating.md"}', "prometheus/b.yml": b"runbook_url: docs/operating.md#down\n"}


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


def test_what_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failed = run(str(tmp_path / "file"))
    assert failed.exit_code == 1
    assert "cannot write" in failed.output


def test_the_runbook_can_be_somewhere(tmp_path: Path) -> None:
    assert with_runbook(FILES, URL) == {
        "grafana/a.json": b'{"query": "https://wiki.example/operating"}',
        "prometheus/b.yml": b"runbook_url: https://wiki.example/operating#down\n",
    }
    assert run(str(tmp_path), "--runbook", URL).exit_code == 0
    written = there(tmp_path)
    assert all(URL.encode() in written[name] for name in written if name.startswith("grafana/"))
    assert not any(RUNBOOK.encode() in content for content in written.values())


@pytest.mark.parametrize("url", ["operating.md", "file:///etc", 'https://a/"b', "https://a b"])
def test_the_runbook_is_a_url(tmp_path: Path, url: str) -> None:
    refused = run(str(tmp_path), "--runbook", url)
    assert refused.exit_code == 2
    assert there(tmp_path) == {}
