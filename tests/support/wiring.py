"""Parts wired for tests without a settings file."""

from yarl import URL

from engines.registry import make
from gateway.errors import EngineGone
from gateway.fleet.registry import Member, Registry


def fleet(
    *ids: str, model: str = "m", url: str = "http://127.0.0.1:9", kind: str = "llamacpp", most_running: int | None = None
) -> Registry:
    """A registry of engines that are not ready yet."""
    engine = make(kind)
    return Registry([Member(id=each, model=model, engine=engine, root=URL(url), most_running=most_running) for each in ids])


def lose(registry: Registry, engine_id: str) -> None:
    """Traffic finds an engine gone."""
    registry.visit(engine_id).failed(EngineGone("gone"))
