"""A real Prometheus on a free loopback port, as an operator runs it: it scrapes, evaluates rules and answers queries.

Everything here waits in the thread that calls it. Where what is scraped runs in the test's own loop, call it by
`asyncio.to_thread`.
"""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.services import program

START_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0
_POLL_S = 0.05
_LISTENS = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


@dataclass(frozen=True)
class Sample:
    """One series of an answer, and its value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """A running one. `targets` is how many its settings name."""

    url: str
    targets: int
    log: Path

    def api(self, path: str, **parameters: str) -> Any:
        """What it says to `/api/v1/` and a path: `query`, `rules`, `alerts`, `query_exemplars`, …

        Raises:
            AssertionError: it refuses; with its words.
        """
        data = urllib.parse.urlencode(parameters).encode() if parameters else None
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{parameters.get('query', path)}: {refused.read().decode(errors='replace')}") from None

    def query(self, expression: str) -> list[Sample]:
        """An expression's series now; a scalar is one without labels."""
        answer = self.api("query", query=expression)
        if answer["resultType"] == "scalar":
            return [Sample({}, float(answer["result"][1]))]
        return [Sample(series["metric"], float(series["value"][1])) for series in answer["result"]]

    def values(self, expression: str) -> list[float]:
        """The same without their labels."""
        return [sample.value for sample in self.query(expression)]

    def scraped(self, times: int = 1, within_s: float = START_LIMIT_S) -> None:
        """Waits until it has read each of its targets so often. It begins 5 s after its start."""
        known = f"count(sum_over_time(up[1h]) >= {times})"
        self.until(lambda: self.values(known) == [self.targets], within_s, f"{self.targets} targets scraped {times} times")

    def until(self, true: Callable[[], bool], within_s: float = START_LIMIT_S, what: str = "it") -> None:
        """Waits for something that it comes to know."""
        limit_s = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < limit_s, f"not in {within_s:g} s: {what}\n{self.log.read_text()[-2000:]}"
            time.sleep(_POLL_S)


@contextmanager
def prometheus(config: Mapping[str, Any], folder: Path) -> Iterator[Prometheus]:
    """One with this configuration, ready, and gone afterwards. It keeps its data, log and configuration in the folder."""
    file, log = folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(dict(config)))
    command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus.data'}"]
    options = ["--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage"]
    with log.open("wb") as out:
        child = subprocess.Popen([*command, *options], stdout=out, stderr=out)
    try:
        yield Prometheus(_ready(child, log), _targets(config), log)
    finally:
        child.terminate()
        try:
            child.wait(STOP_LIMIT_S)
        finally:
            child.kill()


def scraping(*targets: str, every: str = "1s", rules: Sequence[Path] = (), job: str = "interlock") -> dict[str, Any]:
    """The configuration of one that reads these URLs, and evaluates the rules of these files, as often. The job's name is what
    the project's own rules and dashboards go by."""
    addresses = [urllib.parse.urlsplit(target).netloc for target in targets]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(file) for file in rules],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": addresses}]}],
    }


def _targets(config: Mapping[str, Any]) -> int:
    jobs = config.get("scrape_configs", [])
    return sum(len(group["targets"]) for job in jobs for group in job.get("static_configs", []))


def _ready(child: "subprocess.Popen[bytes]", log: Path) -> str:
    """Its URL, once it says where it listens and that it can be asked."""
    limit_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit_s:
        assert child.poll() is None, f"it ended with code {child.returncode}:\n{log.read_text()[-2000:]}"
        if found := _LISTENS.search(log.read_text()):
            url = f"http://127.0.0.1:{found[1]}"
            if _answers(f"{url}/-/ready"):
                return url
        time.sleep(_POLL_S)
    raise AssertionError(f"it was not ready in {START_LIMIT_S:g} s:\n{log.read_text()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:  # it is starting
        return False
