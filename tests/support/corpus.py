"""Texts that are hard to tokenise."""

import random

WORDS = (
    "a B é ß 1 23 456789 ٣ ² Ⅷ ½ 's 'LL 'ſ 'S don't I'VE ! ?! ... _ -- $ € ª { \" \\ word İ 你好 日本 한국 🦙 👨‍👩‍👧 "
    "<|im_start|> <|im_end|> <|im_ |> <gh_stars> <|endoftext|> </tool_call> x\x04y =\x04= -\x06- \x06 "
    "e\u0301 \u0300 \u200d \ufeff \u0d4d \u0e33 \U0001f1e9\U0001f1ea"
)
SPACES = (" ", "  ", "\t", "\n", "\r\n", "\n\n\n", "  \n", "\x0b", "\x0c", "\x85", *"\u00a0\u1680\u180e\u2028\u3000")


def corpus(count: int) -> list[str]:
    """Texts of pieces that split words, and of random characters from every plane that holds some."""
    chance = random.Random(7)
    pieces = [*WORDS.split(" "), *SPACES]
    texts = ["".join(chance.choice(pieces) for _ in range(chance.randrange(1, 25))) for _ in range(count * 2 // 3)]
    planes = ((0x20, 0x500), (0x500, 0xD800), (0xE000, 0x20000))
    spread = [[chr(chance.randrange(*chance.choice(planes))) for _ in range(chance.randrange(1, 30))] for _ in range(count // 3)]
    return texts + ["".join(characters) for characters in spread]
