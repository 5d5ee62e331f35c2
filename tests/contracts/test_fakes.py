"""The fakes of the engines that cannot run here: they refuse what their tables lack, and SGLang's table is that of its wheel."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import table
from fakes.conforming import ConformingEngine, ids_of
from fakes.sglang import FakeSglang
from fakes.trtllm import FakeTrtLlm

from scripts import sglang_table

ROOT = Path(__file__).parent.parent.parent
SGLANG = {"input_ids": [1], "stream": True, "sampling_params": {"max_new_tokens": 2, "stop_token_ids": [2]}}
TRTLLM = {"model": "m", "prompt": [1], "stream": True, "max_tokens": 2, "detokenize": False}


async def answered(make: Callable[[], ConformingEngine], body: dict[str, Any]) -> httpx.Response:
    async with make().running() as engine, httpx.AsyncClient(trust_env=False) as client:
        assert isinstance(engine, ConformingEngine)
        return await client.post(engine.url + engine.path, json=body)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"bogus": 1}, "unknown field `bogus`"),
        ({"sampling_params": {"max_tokens": 2}}, "unknown field `max_tokens`"),
        ({"sampling_params": {"max_new_tokens": "2"}}, "invalid type of `max_new_tokens`"),
        ({"sampling_params": {"choice": ["a"]}}, "unknown field `choice`"),
        ({"sampling_params": {"repetition_penalty": 3}}, "repetition_penalty must be"),
        ({"sampling_params": {"top_k": 0}}, "top_k must be"),
        ({"stream": "yes"}, "invalid type of `stream`"),
        ({"input_ids": ["a"]}, "invalid type of `input_ids`"),
    ],
)
async def test_sglang_takes_what_its_table_has(incremental: bool, changed: dict[str, Any], says: str | None) -> None:
    answer = await answered(lambda: FakeSglang(incremental=incremental), {**SGLANG, **changed})
    assert ("error" in answer.text) is (says is not None)
    assert says is None or says in answer.text


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"return_token_ids": True}, "unknown field `return_token_ids`"),
        ({"cache_salt": "a"}, "unknown field `cache_salt`"),
        ({"priority": 0.5}, "unknown field `priority`"),
        ({"stream_options": {"bogus": True}}, "unknown field `bogus`"),
        ({"response_format": {"type": "ebnf", "grammar": "root ::= "}}, "unknown field `grammar`"),
        ({"logprobs": 1}, "logprobs is not supported"),
        ({"detokenize": "no"}, "invalid type of `detokenize`"),
    ],
)
async def test_trtllm_takes_what_its_table_has(changed: dict[str, Any], says: str | None) -> None:
    answer = await answered(FakeTrtLlm, {**TRTLLM, **changed})
    assert answer.status_code == (200 if says is None else 400)
    assert says is None or says in answer.text


async def test_both_ways_of_sglang_say_the_same_ids() -> None:
    body = {**SGLANG, "sampling_params": {"max_new_tokens": 9}}
    whole, parts = [(await answered(lambda each=each: FakeSglang(incremental=each), body)).text for each in (False, True)]  # type: ignore[misc]  # a default binds the loop's value
    everything = str(ids_of("Hello")).replace(" ", "")
    assert everything.removesuffix("]") in whole.replace(" ", "")
    assert everything.removesuffix("]") not in parts.replace(" ", "")
    assert whole.count("data: ") == parts.count("data: ")


def test_a_fake_makes_nothing_up() -> None:
    with pytest.raises(AssertionError, match="bogus"):
        table.conforms(table.load("trtllm")["choice"], {"index": 0, "bogus": 1})


def test_sglangs_table_is_that_of_its_wheel() -> None:
    """Where the wheel is at hand: `pip download --no-deps --dest .cache sglang==VERSION`."""
    version = table.load("sglang")["version"]
    found = (
        [Path(named)] if (named := os.environ.get("SGLANG_WHEEL")) else sorted((ROOT / ".cache").glob(f"sglang-{version}-*.whl"))
    )
    if not found:
        pytest.skip(f"no wheel of SGLang {version} under .cache")
    assert sglang_table.text_of(found[0]) == sglang_table.FILE.read_text()


CONTRACT = "\n".join(f"class {name}:\n    a: int = 1\n    b: Optional[str] = None\n" for _, name in sglang_table.CLASSES.values())
SERVER = "\n".join(f"@app.post({path!r})\nasync def f{at}(): ...\n" for at, path in enumerate(sglang_table.ROUTES))
MANAGER = "async def _handle_batch_output(self):\n    meta_info = {'id': 1, 'prompt_tokens': 2}\n"


def _read(path: str) -> str:
    return {
        sglang_table.SERVER: SERVER,
        sglang_table.MANAGER: MANAGER,
        sglang_table.SAMPLING: "class SamplingParams:\n    a: int = 1\n",
    }.get(path, CONTRACT)


def test_the_table_is_read_from_sources_that_are_not_run() -> None:
    made = sglang_table.table(_read)
    assert made["request"] == {
        "a": {"type": "int", "at": f"{sglang_table.CONTRACT}:2"},
        "b": {"type": "Optional[str]", "at": f"{sglang_table.CONTRACT}:3"},
    }
    assert set(made["sampling_params"]) == {"a"}
    assert set(made["meta_info"]) == {"id", "prompt_tokens", "a", "b"}
    assert set(made["routes"]) == set(sglang_table.ROUTES)


@pytest.mark.parametrize("gone", [sglang_table.SERVER, sglang_table.MANAGER, sglang_table.CONTRACT])
def test_sources_that_lack_what_is_asked_for_are_told(gone: str) -> None:
    with pytest.raises(LookupError):
        sglang_table.table(lambda path: "" if path == gone else _read(path))
