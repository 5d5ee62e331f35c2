"""Time to the first token on two real llama.cpp engines, under `cost` and under `round_robin`: of all turns of conversations but
their first.

`python -m perf.routing_real [CONVERSATIONS [TURNS]]`: each policy has two fresh engines and the same conversations. Prints the
mean of each in milliseconds, how much of these prompts was not cached, and the ratio of the means. No gate: the engines share the
machine's cores with each other, with the gateway and with whatever else runs.
"""

import asyncio
import sys
from statistics import mean

from support.gateway import serving, settings_for
from support.llamacpp import running_engine, smollm2_file
from support.talks import Turn, rounds, talks, watching

POLICIES = ("cost", "round_robin")
CHUNK_TOKENS = 4
WORDS_EACH, SAYS = 60, (50, 70)
AT_A_TIME = 2


async def measured(policy: str, conversations: int, turns: int) -> list[Turn]:
    """All turns but the first of each, under one policy."""
    with running_engine() as a, running_engine() as b, watching() as watch:
        engines = [{"id": name, "url": each.url, "kind": "llamacpp"} for name, each in (("a", a), ("b", b))]
        routing = {"chunk_tokens": CHUNK_TOKENS, "policy": policy}
        settings = settings_for("", engines=engines, source=str(smollm2_file()), format="plain", routing=routing)
        async with serving(settings) as served:
            all_talks = talks(conversations, seed=9, words_each=WORDS_EACH, says=SAYS)
            await rounds(all_talks, 1, served.client, watch, at_a_time=AT_A_TIME)
            return await rounds(all_talks, turns - 1, served.client, watch, at_a_time=AT_A_TIME)


def main() -> int:
    conversations, turns = (*map(int, sys.argv[1:]), *(6, 4)[len(sys.argv) - 1 :])
    means = {}
    for policy in POLICIES:
        made = asyncio.run(measured(policy, conversations, turns))
        means[policy] = mean(turn.ttft_s for turn in made)
        made_anew = mean(turn.prompt_tokens - turn.reported for turn in made)
        about = f"{made_anew:4.0f} of {mean(turn.prompt_tokens for turn in made):4.0f} tokens of a prompt made anew"
        print(f"{policy:12s} {len(made)} turns: first token {means[policy] * 1e3:6.0f} ms, {about}", flush=True)
    print(f"cost / round_robin: {means['cost'] / means['round_robin']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
