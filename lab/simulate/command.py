"""`interlock simulate`: found by the command line as an entry point of the group `interlock.commands`."""

import sys
from pathlib import Path
from time import process_time
from typing import Annotated, NoReturn

import typer

from gateway.wire.jsonio import encode
from lab.simulate.model import EngineModel, Reserve
from lab.simulate.named import POLICIES
from lab.simulate.report import lines, report
from lab.simulate.run import Loop, simulate
from lab.traces import Reading, TraceError, multiplied, read


def command(
    *,
    file: Annotated[Path, typer.Argument(metavar="TRACE", help="Mooncake's JSON lines, sessions of agents, or Azure's CSV.")],
    engines: Annotated[int, typer.Option(help="Replicas of the engine.", min=1, max=4096)],
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}.")] = "cost",
    limit: Annotated[int | None, typer.Option(help="Read so many requests at most.", min=1)] = None,
    speed: Annotated[float, typer.Option(help="The trace's clock: 2 lets requests come, and users think, twice as fast.")] = 1.0,
    copies: Annotated[int, typer.Option(help="So many times the sessions, none like another.", min=1)] = 1,
    sessions_per_s: Annotated[float, typer.Option(help="Sessions of agents that begin in a second.")] = 0.05,
    blocks: Annotated[int, typer.Option(help="KV blocks of 512 tokens of one engine.", min=1)] = 4000,
    reserve: Annotated[Reserve, typer.Option(help="What an admitted request gets blocks for: prompt or output.")] = "prompt",
    loop: Annotated[Loop, typer.Option(help="Sessions of agents: closed (an answer, a thought, the next) or open.")] = "closed",
    seed: Annotated[int, typer.Option(help="Of the starts of sessions and of a policy's ties.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Simulate a fleet of engines under a recorded load, and say what a routing policy makes of it."""
    if policy not in POLICIES:
        raise typer.BadParameter(f"{policy!r} is none of {', '.join(POLICIES)}", param_hint="--policy")
    for value, option in ((speed, "--speed"), (sessions_per_s, "--sessions-per-s")):
        if not 0 < value < float("inf"):
            raise typer.BadParameter("is above zero", param_hint=option)
    try:
        trace = multiplied(read(file, Reading(limit=limit, seed=seed, sessions_per_s=sessions_per_s)), copies)
    except TraceError as error:
        _fail(str(error), 2)
    model = EngineModel(blocks=blocks, block_tokens=trace.block_tokens, reserve=reserve)
    began_s = process_time()
    outcome = simulate(trace, engines, POLICIES[policy], model, speed=speed, loop=loop, seed=seed)
    took_s = process_time() - began_s
    if not outcome.jobs:
        _fail(f"{file}: every request is longer than an engine's {blocks} blocks")
    made = report(outcome, trace.name, policy)
    for line in [encode(made)] if as_json else lines(made):
        typer.echo(line)
    typer.echo(f"{len(outcome.jobs)} requests simulated in {took_s:.1f} s of CPU", err=True)


def _fail(message: str, code: int = 1) -> NoReturn:
    print(f"interlock: {message}", file=sys.stderr)
    sys.exit(code)
