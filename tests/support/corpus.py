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


def cased(count: int) -> list[str]:
    """Texts of letters whose case and script decide where words end."""
    pieces = "HelloWorld ABCdef don't DON'T ÉCOLEécole ÜberGROß X'Ll 漢字かな 𠀀 〇々 豈 a/b //\n /\r\n ǅ ǆ ª ʰ E\u0301 a B 1 "
    pieces += "日本語abc'S 1234567 K's"
    return _mixed([*pieces.split(" "), " ", "\n", " \n x", "\r\n\r\n  z", "\t\n"], count, seed=5)


def spaced(count: int) -> list[str]:
    """Texts of runs, of blanks above all, and of special tokens, whole and in halves."""
    pieces = [
        "[INST]",
        "[/INST]",
        "</s>",
        "<s>",
        "<unk>",
        "</",
        "[INS",
        "<0x0A>",
        "▁",
        "▁▁",
        "aba",
        "abab",
        "aaaaaaa",
        "------",
        "a",
        "b",
    ]
    return _mixed(
        [*pieces, "é", "the", " an", "ing", " 10", "00", "\n", "\n\n\n", *(" " * each for each in (1, 2, 3, 15, 40))],
        count,
        seed=3,
    )


def _mixed(pieces: list[str], count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choice(pieces) for _ in range(chance.randrange(1, 20))) for _ in range(count)]
