"""What tokenising an agent's turns costs with the segment cache and without: 150 growing prompts, to some 90,000 tokens.

CPU of the thread pool and of the caller together. `PYTHONPATH=tests python -m perf.bench_prompt`.
"""

import random
import statistics
import sys
import time

from support.llamacpp import smollm2_file

from gateway.prompt.segments import Segments, cut_tokens
from gateway.prompt.source import read_model

TURNS = 150
WORDS = ("the file has", "an error", "in line", "return self", "value", "None", "open path", "list of results", "call it")
WHOLE_AT = (29, 89, 149)  # the turns whose whole prompt is tokenised too
LIMIT_MS = 15.0


def prompts(source: random.Random) -> list[str]:
    """The prompt of each turn: all that was said before, and a tool's answer of some 600 tokens."""
    grown = "<|im_start|>system\n" + " ".join(source.choices(WORDS, k=3_300)) + "<|im_end|>\n"
    found = []
    for _ in range(TURNS):
        grown += f"<|im_start|>user\n{' '.join(source.choices(WORDS, k=260))}<|im_end|>\n<|im_start|>assistant\n"
        found.append(grown)
        grown += " ".join(source.choices(WORDS, k=25)) + "<|im_end|>\n"
    return found


def main() -> int:
    """Prints the figures; 1 if the median turn costs over 15 ms or an id differs."""
    tokenizer = read_model(smollm2_file()).tokenizer
    segments = Segments(tokenizer, cut_tokens(tokenizer.added, "<|im_start|><|im_end|>")[0])
    costs_ms, whole, wrong = [], [], False
    for turn, text in enumerate(prompts(random.Random(3))):
        start = time.process_time()
        ids = segments.encode(text)
        costs_ms.append((time.process_time() - start) * 1e3)
        if turn in WHOLE_AT:
            start = time.process_time()
            wrong = wrong or tokenizer.encode(text) != ids
            whole.append(f"{(time.process_time() - start) * 1e3:.0f} ms for {len(ids)} tokens")
    median_ms = statistics.median(costs_ms)
    print(f"tokenising a turn: median {median_ms:.1f} ms, most {max(costs_ms):.0f} ms; the whole prompt: {', '.join(whole)}")
    return 1 if wrong or median_ms > LIMIT_MS else 0


if __name__ == "__main__":
    sys.exit(main())
