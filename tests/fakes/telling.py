"""A vLLM whose cache is there: it reports what it had of a prompt, and tells of its blocks as the real one can be set to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fakes.conforming import Asked
from fakes.vllm import FakeVllm
from support.kv_publisher import Publisher, removed, stored

BLOCK = 16


class Telling(FakeVllm):
    """A vLLM that keeps what it has worked on, and publishes that. `tells`: it does so; `forgets`: it reports that nothing of a
    prompt was cached."""

    def __init__(self, folder: Path, **about: Any) -> None:
        super().__init__()
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.publisher = Publisher(folder, **about)
        self.held: set[tuple[int, ...]] = set()
        self.tells, self.forgets = True, False

    def entry(self) -> dict[str, str]:
        """What the settings have of its events."""
        return {"endpoint": self.publisher.live, "replay_endpoint": self.publisher.replay}

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        """What it says, once its cache has the prompt and the answer but for its last token."""
        cached = 0 if self.forgets else BLOCK * min(self._has(asked.prompt), (len(asked.prompt) - 1) // BLOCK)
        said: list[Any] = super().events(asked, parts, finish)
        said[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] = cached
        self.works_on([*asked.prompt, *[token for part in parts for token in part][:-1]])
        return said

    def works_on(self, ids: Sequence[int]) -> None:
        """As a prompt of whomever it has made, which it tells."""
        has, blocks = self._has(ids), len(ids) // BLOCK
        self.held |= {tuple(ids[: end * BLOCK]) for end in range(has + 1, blocks + 1)}
        if self.tells and has < blocks:
            self.publisher.publish(stored(ids, BLOCK, has))

    def evicts(self, ids: Sequence[int], keeps: int) -> None:
        """All blocks of this prompt but the first ones, the last first."""
        gone = [tuple(ids[: end * BLOCK]) for end in range(self._has(ids), keeps, -1)]
        self.held -= set(gone)
        self.publisher.publish(removed(*gone))

    def restarts(self) -> None:
        """As another process at the same place, which holds nothing."""
        self.stops()
        self.held.clear()
        self.publisher = Publisher(self._folder)

    def stops(self) -> None:
        """Publishes no more."""
        self.publisher.__exit__()

    def _has(self, ids: Sequence[int]) -> int:
        blocks = len(ids) // BLOCK
        return next((at for at in range(blocks) if tuple(ids[: (at + 1) * BLOCK]) not in self.held), blocks)
