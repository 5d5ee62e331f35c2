"""Stop strings, applied by the gateway to the visible answer.

They match in content only: a stop string inside a tool call's arguments or a thought is data, and cutting there would leave a
broken call. Invariant: any split of the content gives the same text, and held-back text is shorter than the longest stop string.
"""

from gateway.wire.text import held_suffix


class StopMatcher:
    """Feed it content; it gives back what may be shown. `matched` is the stop string that ended the answer."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certainly before any stop string; nothing once one has matched."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            # The first to be complete, as a token-by-token search would find it; of several, the longest.
            at, self.matched = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self._held = ""
            return text[:at]
        keep = held_suffix(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more content can follow it directly."""
        held, self._held = self._held, ""
        return held
