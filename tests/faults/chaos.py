"""The faults of an engine, as data: which there are, and how a prompt or an admin call asks for one.

A prompt asks with `[[chaos:reset_mid_stream after=3 only=a]]`. Values are numbers where they look like one. Every fault knows:

- `only=a`: only the engine of this name has it;
- `times=2`: only the first so many requests with this very marker (or since this very admin call) have it;
- `whole=1`: what the answer's body has, it has in one piece;
- `every=2`: each second such request has it, the first one first.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Value = str | float

NONE = "none"
BEFORE_HEADERS = {
    "hang_before_headers": "the request is read, and nothing follows",
    "slow_headers": "the headers come after `s` seconds (0.5)",
    "close_before_headers": "FIN instead of an answer",
    "rst_before_headers": "RST instead of an answer",
    "crash": "RST instead of an answer, and the engine is down for `s` seconds (1)",
    "close_idle": "a whole answer; the next request on its connection meets a FIN",
    "rst_idle": "a whole answer; the next request on its connection meets an RST",
}
STATUS = {
    "400": "the request is wrong",
    "404": "the model is not there",
    "408": "it took too long",
    "421": "not for this engine",
    "422": "the request cannot be read",
    "429": "too busy; `retry_after` (2) seconds, as a date with `date=1`, or `none`",
    "500": "a failure",
    "503": "cannot serve; `retry_after` and `date` as 429",
    "context_length": "400: the prompt is too long, in the engine's own words",
    "oom_500": "500: out of memory",
    "redirect": "307 to `to` (a path of this engine that counts its visitors)",
}
HEADS = {
    "wrong_content_type": "an event stream that calls itself text/plain",
    "no_content_type": "an event stream without a content type",
    "html_200": "a login page with status 200",
    "json_not_stream": "a whole JSON answer with status 200",
    "http_garbage": "bytes that are no HTTP",
    "bad_chunk_size": "a chunk whose size is no number, after `after` tokens (3)",
    "content_length_short": "a content length that is half of what comes",
    "header_bomb": "headers of `kb` KiB (1024)",
    "informational": "100 and 103 before the headers",
}
BEFORE_FIRST = {
    "hang_before_first": "headers, and nothing after them",
    "slow_first": "the first token comes after `s` seconds (0.5)",
    "error_before_first": "an error event with `code` (500) and nothing after it",
}
MID_STREAM = {
    "hang_mid_stream": "silence",
    "pause_mid_stream": "silence for `s` seconds (0.5), then the rest",
    "reset_mid_stream": "RST",
    "close_mid_stream": "FIN in the middle of the HTTP body",
    "end_mid_stream": "the HTTP body ends as it should, the answer does not",
    "half_event": "half of the next event, then FIN",
    "error_mid_stream": "an error event with `code` (500)",
    "bad_json": "an event that is cut in the middle of its JSON, then the rest",
    "not_object": "an event that is a list, then the rest",
    "nan": "an event with NaN for a number, then the rest",
    "nul": "an event with a raw NUL in a string, then the rest",
    "surrogates": "an event whose text is half a character, escaped, then the rest",
    "dup_keys": "the next event has each key twice, with the same value",
    "empty_choices": "an event that holds no choice or token, then the rest",
    "null_content": "an event whose text is null, then the rest",
    "bad_utf8": "an event whose text is no UTF-8, then the rest",
    "giant_chunk": "one event of `mb` MiB (64)",
    "endless_line": "a line that does not end, up to `mb` MiB (256)",
    "comment_flood": "comments and nothing else, up to `mb` MiB (256), a piece each `s` seconds (0)",
    "deep_json": "an event with 100,000 brackets",
    "die": "RST, and the engine is down for `s` seconds (1)",
}
ENDINGS = {
    "no_done": "no end mark; the HTTP body ends (vLLM: no `[DONE]`)",
    "close_after_done": "FIN after the end mark, in the middle of the HTTP body",
    "no_finish": "the end mark, but no event that says why it ended; with `cut=1` FIN for the end mark (vLLM)",
    "half_done": "half of the last event (vLLM: of `[DONE]`), then FIN",
    "done_no_close": "all of it, but the HTTP body does not end",
    "data_after_done": "another token after the end mark",
    "duplicate_done": "the end mark twice",
}
STYLES = {
    "split_utf8": "no piece holds a whole character of several bytes",
    "trickle": "one byte a piece",
    "crlf": "CRLF line ends",
    "cr": "CR line ends",
    "bom": "a byte order mark first",
    "keepalive": "comments between the events",
    "no_space": "no space after `data:`",
    "multi_data": "the JSON over several data lines",
    "event_fields": "event, id and retry fields",
    "unknown_field": "fields that nobody knows",
    "coalesce": "everything in one piece",
    "split_lines": "pieces that end in the middle of lines",
}
PACES = {
    "slow": "`s` seconds (0.05) before each token",
    "fat": "`kb` KiB (4) of text more in each token's event",
}
FAULTS: Mapping[str, str] = {
    **BEFORE_HEADERS,
    **STATUS,
    **HEADS,
    **BEFORE_FIRST,
    **MID_STREAM,
    **ENDINGS,
    **STYLES,
    **PACES,
    NONE: "no fault",
}

_MARKER = re.compile(r"\[\[chaos:(\w{1,40})((?: \w{1,20}=[^\s\]]{1,200}){0,8})\]\]")


@dataclass(slots=True)
class Fault:
    """One fault that was asked for, and how many requests could have had it."""

    mode: str = NONE
    given: dict[str, Value] = field(default_factory=dict)
    asked: int = 0

    def number(self, name: str, default: float) -> float:
        """A parameter that is a number."""
        value = self.given.get(name, default)
        if isinstance(value, str):
            raise ValueError(f"{self.mode}: {name} is {value!r}, and no number")
        return value

    def falls(self) -> bool:
        """Whether the next request that could have it has it."""
        self.asked += 1
        every = int(self.number("every", 1))
        return (self.asked - 1) % every == 0 and (self.asked - 1) // every < self.number("times", float("inf"))


def fault(mode: str, given: Mapping[str, Value]) -> Fault:
    """One fault. Raises ValueError for one that is not known: a test with a typing error must not pass for want of faults."""
    if mode not in FAULTS:
        raise ValueError(f"no such fault: {mode}")
    return Fault(mode, dict(given))


def marked(text: str) -> Iterator[tuple[str, Fault]]:
    """The markers of a prompt, each with what it asks for."""
    for found in _MARKER.finditer(text):
        given = (each.split("=", 1) for each in found[2].split())
        yield found[0], fault(found[1], {name: _value(value) for name, value in given})


def _value(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text
