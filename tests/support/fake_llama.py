"""A local engine that is quick to start, for `python -m`: it says what FAKE_ANSWER tells it to."""

import argparse
import asyncio
import os
from collections.abc import Sequence

from support.scripted_engine import CLOSE, HANG, HEAD, RESET, ScriptedEngine, Step, completion, event

ERROR = b'{"error": {"message": "the slot failed", "code": 500}}'
ANSWERS: dict[str, Sequence[Step]] = {
    "hello": completion("Hello", ", I am", " a test."),
    "nothing": completion(),
    "reset": [RESET],
    "refused": [b"HTTP/1.1 500 Oops\r\ncontent-length: %d\r\n\r\n%s" % (len(ERROR), ERROR), CLOSE],
    "broken": [HEAD, event({"index": 0, "content": "a", "tokens": [5], "tokens_predicted": 1}), RESET],
    "silent": [HANG],
}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    options, _ = parser.parse_known_args()
    engine = ScriptedEngine()
    engine.script = lambda seen: ANSWERS[os.environ["FAKE_ANSWER"]]
    engine.up = os.environ["FAKE_ANSWER"] != "down"
    async with engine.running(options.port):
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main())
