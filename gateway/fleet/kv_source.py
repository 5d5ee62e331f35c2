"""Where an engine tells what its cache holds."""

from dataclasses import dataclass

from engines.base import KvEventsWay

_ANY_HOST = "tcp://*:"


@dataclass(frozen=True, slots=True)
class KvSource:
    """As the settings have it. `bind`: the engine connects to `endpoint`, which is ours. `poll_s`: how often one is asked that
    tells when it is asked."""

    way: KvEventsWay
    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool = False
    poll_s: float = 0.5

    def live_at(self, host: str, rank: int | None) -> str:
        """The address for what is new. The port of a data-parallel rank is that many above the first one's."""
        return _offset(self.endpoint if self.bind else _of_host(self.endpoint, host), rank)

    def replay_at(self, host: str, rank: int | None) -> str | None:
        """That for what was missed; None: there is none."""
        return None if self.replay_endpoint is None else _offset(_of_host(self.replay_endpoint, host), rank)


def _of_host(endpoint: str, host: str) -> str:
    """An engine says where it listens; there `*` is the host that it is asked at."""
    if not endpoint.startswith(_ANY_HOST):
        return endpoint
    named = f"[{host}]" if ":" in host else host
    return f"tcp://{named}:{endpoint.removeprefix(_ANY_HOST)}"


def _offset(endpoint: str, rank: int | None) -> str:
    if not rank or not endpoint.startswith("tcp://"):
        return endpoint
    place, _, port = endpoint.rpartition(":")
    return f"{place}:{int(port) + rank}"
