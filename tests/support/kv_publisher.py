"""A publisher of KV events as vLLM and SGLang have it: a PUB socket, a ROUTER for what was missed, and faults on purpose."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

END = b"\xff" * 8


def stored(ids: Sequence[int], size: int = 4, first: int = 0, **more: Any) -> dict[str, Any]:
    """The whole blocks of a prompt from the first on, as an event."""
    ends = range((first + 1) * size, len(ids) + 1, size)
    return {
        "type": "BlockStored",
        "block_hashes": [block_hash(ids[:end]) for end in ends],
        "parent_block_hash": block_hash(ids[: first * size]) if first else None,
        "token_ids": list(ids[first * size : ends[-1]]),
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*prompts: Sequence[int], medium: str = "GPU") -> dict[str, Any]:
    """The last block of each of these prefixes."""
    return {"type": "BlockRemoved", "block_hashes": [block_hash(each) for each in prompts], "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


def block_hash(ids: Sequence[int]) -> int:
    return hash(tuple(ids)) & ((1 << 64) - 1)


class Publisher:
    """Publishes from a thread of its own, as engines do. `buffer` batches can be asked for again; `topic_in_replay` as vLLM has
    had it since 0.26; `deaf`: what is asked for is not answered."""

    def __init__(
        self,
        folder: Path,
        *,
        buffer: int = 10_000,
        topic: bytes = b"kv@a",
        topic_in_replay: bool = True,
        first: int = 0,
        connect: str | None = None,
    ) -> None:
        self.live, self.replay = f"ipc://{folder}/live", f"ipc://{folder}/replay"
        self.deaf = False
        self.asked: list[int] = []
        self._topic = topic
        self._topic_in_replay = topic_in_replay
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._number = first
        self._jobs: deque[tuple[tuple[int, bytes, bool] | list[bytes], threading.Event]] = deque()
        self._closing = False
        self._ready = threading.Event()
        self._connect = connect
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(5)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def publish(self, *events: Any, rank: int | None = 0, lost: bool = False) -> int:
        """One batch; `lost`: it does not arrive, but can be asked for. Its number."""
        return self.send(msgspec.msgpack.encode([time.time(), list(events), rank]), lost=lost)

    def send(self, payload: bytes, *, lost: bool = False) -> int:
        """Any bytes as the next batch."""
        number, self._number = self._number, self._number + 1
        self._job((number, payload, lost))
        return number

    def raw(self, *frames: bytes) -> None:
        """A message that is no batch."""
        done = threading.Event()
        self._jobs.append((list(frames), done))
        assert done.wait(5)

    def again(self, number: int) -> None:
        """Sends a batch a second time."""
        self._job((number, dict(self._buffer)[number], False))

    def _job(self, batch: tuple[int, bytes, bool]) -> None:
        done = threading.Event()
        self._jobs.append((batch, done))
        assert done.wait(5)

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.PUB) as live, context.socket(zmq.ROUTER) as replay:
            live.setsockopt(zmq.LINGER, 0)
            replay.setsockopt(zmq.LINGER, 0)
            if self._connect is None:
                live.bind(self.live)
            else:
                live.connect(self._connect)
            replay.bind(self.replay)
            self._ready.set()
            while not self._closing:
                if replay.poll(2):
                    self._answer(replay)
                while self._jobs:
                    job, done = self._jobs.popleft()
                    if isinstance(job, list):
                        live.send_multipart(job)
                    else:
                        number, payload, lost = job
                        if number not in dict(self._buffer):
                            self._buffer.append((number, payload))
                        if not lost:
                            live.send_multipart((self._topic, number.to_bytes(8, "big"), payload))
                    done.set()

    def _answer(self, replay: "zmq.Socket[bytes]") -> None:
        name, empty, start = replay.recv_multipart()
        assert empty == b""
        self.asked.append(int.from_bytes(start, "big"))
        if self.deaf:
            return
        for number, payload in self._buffer:
            if number >= self.asked[-1]:
                topic = (self._topic,) if self._topic_in_replay else ()
                replay.send_multipart((name, b"", *topic, number.to_bytes(8, "big"), payload))
        replay.send_multipart((name, b"", *((b"",) if self._topic_in_replay else ()), END, b""))
