"""Runs llama.cpp's own HTTP server, out of the wheel `xllamacpp`, until it is told to end: on 127.0.0.1, or in a container on
the address that its network needs. It checks no keys.

`python -m engines.launch.llamacpp --model FILE.gguf --port N`. It ends with code 0 on SIGTERM, on SIGINT and, where `--parent`
names its parent, within a second after that process is gone; with code 1 and one clear last line on stderr where it cannot serve.

Its threads sleep while they wait, unless OMP_WAIT_POLICY says otherwise: spinning on busy cores, decoding is ten times slower.
"""

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

PARENT_CHECK_S = 0.5
LOG_S = 0.5  # llama.cpp logs from a thread of its own, after its failure is known: our line shall be the last


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Blocks while the server runs."""
    options = _parser().parse_args(arguments)
    # The load holds the interpreter's lock, so that Python's handlers could not run: until it is over, signals just kill.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        _check(options.model, options.host, options.port)
        server = _server(options)
    except (ImportError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.wait(PARENT_CHECK_S) and options.parent in (None, os.getppid()):
        pass
    _leave(server)


def _leave(_server: object) -> NoReturn:
    """Ends the process with the server still alive: its own teardown waits half a minute for an answer that is running."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engines.launch.llamacpp", description="llama.cpp's server")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--host", default="127.0.0.1", help="an IPv4 address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, required=True, help="the port there")
    parser.add_argument("--alias", help="the name it serves the model as (default: the file's name)")
    parser.add_argument("--ctx", type=int, default=8192, help="context tokens of each slot, at most the model's (default: 8192)")
    parser.add_argument("--slots", type=int, default=2, help="answers generated at the same time (default: 2)")
    parser.add_argument("--threads", type=int, help="threads that compute (default: the engine's choice)")
    parser.add_argument("--cache-mib", type=int, default=512, help="memory for prompts of earlier requests (default: 512)")
    parser.add_argument("--parent", type=int, help="end when this process is no longer the parent")
    return parser


def _server(options: argparse.Namespace) -> Any:
    """The running server. Raises ImportError or RuntimeError with a message for the user."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # OpenMP reads it once, while it is loaded
    try:
        import xllamacpp  # noqa: PLC0415 - an optional extra: without it the user needs this line, not a traceback
    except ImportError as error:
        raise ImportError("xllamacpp is not installed: `pip install '.[local]'` in a clone brings it") from error
    try:
        return xllamacpp.Server(_params(xllamacpp.CommonParams(), options))
    except RuntimeError as error:
        time.sleep(LOG_S)
        raise RuntimeError(f"llama.cpp cannot serve {options.model} on port {options.port}: {error}") from error


def _check(model: Path, host: str, port: int) -> None:
    """The two usual mistakes, in clearer words than the engine's own. Raises OSError."""
    try:
        with model.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise OSError(f"{model} is not a GGUF file")
    except OSError as error:
        raise OSError(f"cannot read {model}: {error.strerror}" if error.strerror else str(error)) from error
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(f"port {port} on {host} cannot be used: {error.strerror}") from error


def _params(params: Any, options: argparse.Namespace) -> Any:
    """llama.cpp divides `n_ctx` by the slots; each slot having its own part, one long prompt cannot starve another."""
    params.model.path = str(options.model)
    params.model_alias = {options.alias or options.model.stem}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.ctx * options.slots
    params.cache_ram_mib = options.cache_mib
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = True
    params.ui = False
    params.cors_origins = "http://127.0.0.1"  # by default any web page that the user visits may read prompts out of /slots
    params.verbosity = 1  # errors only
    if options.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    return params


if __name__ == "__main__":
    sys.exit(main())
