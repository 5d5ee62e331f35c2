"""Whether an engine has the tokenizer that prompts are made with, told by a text that both tokenise.

With token ids in, an engine of another model, or of another revision of it, answers fluent nonsense without an error.

Invariant: engines that serve the same model agree on the text, though they come by their ids in other ways. So no normalisation
changes it, and special tokens stand at its end, next to nothing but each other: engines differ in the blanks around them, which
does not matter where ids are sent.
"""

from dataclasses import dataclass

from gateway.prompt.tokenizer import Tokenizer

TEXT = (
    "The engine's tokenizer shouldn't differ: it's the SAME model, isn't it? Well-known words, rare ones (antidisestablish"
    "mentarianism), CamelCase and snake_case.\n\nZażółć gęślą jaźń; Fußgänger, naïve café. Ξεσκεπάζω ψυχοφθόρα. "
    "Съешь ещё этих мягких булок. שלום עולם, נִקּוּד. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก. "
    "你好世界。人工智能。こんにちは、カタカナ。안녕하세요 세계. 😀🚀🇫🇷 x̂ + q̃ = q̣̇ ± ∑ → €.\n"
    "0 7 42 365 1000 31415 271828 1234567 3.14159 2026-11-29 0xDEADBEEF 1e-9\n"
    "two  three   four    eight        sixteen                .\ttab\t\ttabs\n\n\n  \n"
    "def f(xs: list[int]) -> dict[str, int]:\n    if xs and xs[0] != 1:\n\t\treturn {'sum': sum(xs)}  # 100% <b>{{ x }}</b>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris\\n", "days": [1, 2.5, null, true]}}\n'
    "https://example.org/a?b=c&d=%20#e user@example.org `ls ~/*.py` && echo '$1' || exit 1; --flag=<value> end"
)
_MAX_SPECIALS = 1024
_AROUND = 6


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that is another one: its position, both ids (None where that side has ended) and the text there."""

    position: int
    gateway_id: int | None
    engine_id: int | None
    text: str


class Parity:
    """A model's own ids for the text, to compare engines' with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.text = TEXT + "".join(_specials(tokenizer))
        self.ids = tokenizer.encode(self.text)

    def difference(self, engine_ids: tuple[int, ...]) -> Difference | None:
        """Where the engine's ids begin to differ, if they do."""
        if engine_ids == self.ids:
            return None
        shorter = min(len(self.ids), len(engine_ids))
        at = next((at for at in range(shorter) if self.ids[at] != engine_ids[at]), shorter)
        return Difference(at, _at(self.ids, at), _at(engine_ids, at), self._around(at))

    def _around(self, position: int) -> str:
        detokenizer = self._tokenizer.detokenizer()
        ids = self.ids[max(position - _AROUND, 0) : position + _AROUND]
        return "".join(detokenizer.add(each) for each in ids) + detokenizer.finish()


def _specials(tokenizer: Tokenizer) -> list[str]:
    """The tokens that are cut out of a text first, by id; not those with blanks, which would run into their neighbours."""
    texts = [text for _, text in sorted((token_id, text) for text, token_id in tokenizer.special_ids.items())]
    return [text for text in texts if not any(map(str.isspace, text))][:_MAX_SPECIALS]


def _at(ids: tuple[int, ...], position: int) -> int | None:
    return ids[position] if position < len(ids) else None
