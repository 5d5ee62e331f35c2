"""The command's first moment: signals are answered before the rest of it is read, which takes a second or more.

Nothing else is imported here, so that this is soon.
"""

import os
import signal
import sys
from datetime import UTC, datetime
from importlib import import_module

ENDING = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """The entry point."""
    if sys.argv[1:2] in (["serve"], ["up"]):
        answer_signals_early(told=sys.argv[1] == "serve")
    import_module("gateway.cli").main()


def answer_signals_early(*, told: bool) -> None:
    """Until the gateway has its own handlers, SIGINT and SIGTERM end the process with exit code 0, as nothing is cut. Where that
    is `told`, it is in the log, and SIGHUP does nothing, as all that it would read again is about to be read."""

    def stop(number: int, _: object) -> None:
        # No exception: what runs now might swallow it. And not by the logger, which it may hold.
        if told:
            at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            os.write(2, f'{{"event":"told to stop before it served","level":"info","ts":"{at}"}}\n'.encode())
        os._exit(0)

    for number in ENDING:
        signal.signal(number, stop)
    if told:
        signal.signal(signal.SIGHUP, lambda *_: None)
