"""What prompts cost the gateway itself."""

from gateway.events import Finished
from gateway.observe.bounds import WORK_S
from gateway.observe.group import Group, Known, Pair
from gateway.observe.series import Histogram


class Rendering(Group):
    """Of models whose prompts are rendered here."""

    def __init__(self, _: Known) -> None:
        self._render = Histogram(
            "interlock_render_seconds",
            "Making a prompt, from the parsed request to its ids; waiting for a render worker included.",
            ("model",),
            WORK_S,
        )
        self._tokenize = Histogram(
            "interlock_tokenize_seconds", "The part of it that makes ids of text, where it runs.", ("model",), WORK_S
        )
        super().__init__("Rendering", (self._render, self._tokenize), {Finished: self._finished})

    def _finished(self, pair: Pair, event: Finished) -> None:
        if event.rendered is not None:
            self._render.add(pair[:1], event.rendered[1] - event.rendered[0], event.recorded)
        if event.tokenize_s is not None:
            self._tokenize.add(pair[:1], event.tokenize_s, event.recorded)


GROUP = Rendering
