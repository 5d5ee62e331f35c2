"""A Dockerfile read, and its install steps done in a folder, where no Docker engine is needed: the steps that copy and run become
the same steps on paths below one folder.

Known are the instructions that ours has; another fails, so that none is passed over.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_INSTALLED = ("opt", "src", "wheels", "models", "etc")  # top folders that a step may name and we move
_KNOWN = {
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "RUN",
    "STOPSIGNAL",
    "USER",
    "WORKDIR",
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of them, with its continued lines joined."""

    word: str
    value: str

    @property
    def argv(self) -> list[str]:
        """A value in the form of a JSON list, options before it left out."""
        argv: list[str] = json.loads(self.value[self.value.index("[") :])
        return argv

    @property
    def paths(self) -> tuple[str | None, list[str], str]:
        """Of a COPY: the stage that it copies from, the sources, the target."""
        *options, _ = [*re.findall(r"--\S+", self.value), ""]
        words = [each for each in self.value.split() if not each.startswith("--")]
        stage = next((each.removeprefix("--from=") for each in options if each.startswith("--from=")), None)
        return stage, words[:-1], words[-1]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part from one FROM to the next."""

    name: str
    image: str
    steps: tuple[Instruction, ...]

    def of(self, word: str) -> list[Instruction]:
        """Its instructions of one kind."""
        return [step for step in self.steps if step.word == word]

    def environment(self) -> dict[str, str]:
        """What its ENV sets, unexpanded."""
        return dict(pair.split("=", 1) for step in self.of("ENV") for pair in step.value.split())


def read(file: Path) -> dict[str, Stage]:
    """The stages by their names, in their order."""
    stages: dict[str, list[Instruction]] = {}
    images: dict[str, str] = {}
    name = ""
    for step in _instructions(file.read_text()):
        assert step.word in _KNOWN, step
        if step.word == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", step.value).groups()  # type: ignore[union-attr]  # else it fails
            stages[name], images[name] = [], image
        elif name:
            stages[name].append(step)
    return {name: Stage(name, images[name], tuple(steps)) for name, steps in stages.items()}


def _instructions(text: str) -> Iterator[Instruction]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        if line.strip():
            word, value = line.split(maxsplit=1)
            yield Instruction(word, value.strip())


class Context:
    """What a build may copy: the folder, but for what `.dockerignore` takes out, in patterns like `*`, `!NAME` and `**/NAME`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = [line for line in (folder / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
        assert lines[0] == "*"
        self.allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
        self.left_out = [line.removeprefix("**/") for line in lines[1:] if line.startswith("**/")]
        assert len(lines) == 1 + len(self.allowed) + len(self.left_out)

    def lets(self, source: str) -> str | None:
        """What lets this through."""
        return next((each for each in self.allowed if f"{source}/".startswith(f"{each}/")), None)

    def copy(self, source: str, target: Path) -> None:
        """As COPY does. Fails where there is nothing to copy, or where it is ignored."""
        assert self.lets(source), f"{source} is ignored"
        path = self.folder / source
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*self.left_out))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


class Building:
    """The files of an image below `root`. `python` of a step is the one that runs the tests, outside its virtual environment."""

    def __init__(self, root: Path, context: Context) -> None:
        self.root = root
        self._context = context
        self._workdir = root
        tools = root / "tools"
        tools.mkdir(parents=True)
        python = Path(getattr(sys, "_base_executable", sys.executable))
        (tools / "python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (tools / "python").chmod(0o755)
        # The index that this machine is set up for is in pip's own settings, or in PIP_INDEX_URL and the like.
        kept = {
            key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_")) or key in {"HOME", "HTTPS_PROXY"}
        }
        self._environ = {**kept, "PATH": f"{tools}:/usr/bin:/bin"}

    def placed(self, text: str) -> str:
        """The text with the absolute paths of the image below the root."""
        return re.sub(rf"(?<![\w./-])/({'|'.join(_INSTALLED)})(?=[/\s:\"']|$)", rf"{self.root}/\1", text)

    def do(self, stage: Stage) -> None:
        """Its COPY from the context and its RUN; of another stage's files, which lie here too, those that it moves."""
        self._workdir = self.root
        for step in stage.steps:
            match step.word:
                case "WORKDIR":
                    self._workdir = Path(self.placed(step.value))
                    self._workdir.mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(step)
                case "RUN":
                    self._run(step.value)

    def take(self, stage: Stage) -> None:
        """The stage's COPY from other stages alone."""
        for step in stage.of("COPY"):
            assert step.paths[0] is not None, step
            self._copy(step)

    def _copy(self, step: Instruction) -> None:
        stage, sources, target = step.paths
        if stage is None:
            for source in sources:
                self._context.copy(source, self._workdir / target)
            return
        for source in sources:
            found = list(self.root.glob(source.removeprefix("/")))
            assert found, f"{stage} has no {source}"
            for path in found:
                if source != target:
                    Path(self.placed(target)).mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, self.placed(target))

    def _run(self, command: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-euc", self.placed(command)],
            cwd=self._workdir,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def environment(self, *stages: Stage) -> Mapping[str, str]:
        """What a process of the image has, and nothing of ours."""
        set_here = {key: value for stage in stages for key, value in stage.environment().items()}
        return {key: self.placed(value).replace("$PATH", "/usr/bin:/bin") for key, value in set_here.items()}
