"""Calls that share an id: their results go to them by their order."""

import pytest

from gateway.errors import BadRequest
from gateway.prompt.conversation import turns
from gateway.request import Message, ToolCall

TWINS = Message("assistant", None, tool_calls=(ToolCall("x", "get_a", "{}"), ToolCall("x", "get_b", "{}")))
UNLIKE = Message(
    "assistant", None, tool_calls=(ToolCall("x", "get_a", "{}"), ToolCall("x", "get_b", "{}"), ToolCall("x_2", "c", "{}"))
)
RESULT = Message("tool", "r", tool_call_id="x")


def answered(*messages: Message) -> list[str]:
    """The names of the calls that the results answer."""
    return [turn.answers.name for turn in turns(messages) if turn.answers is not None]


def test_results_of_calls_that_share_an_id_go_by_their_order() -> None:
    calling, first, second = turns((TWINS, RESULT, RESULT))
    assert [call.id for call in calling.calls] == ["x", "x_2"]
    assert calling.notes == ("messages[0]: its calls share an id: results go to them by their order",)
    assert (first.answers, second.answers) == calling.calls
    assert [call.id for call in turns((UNLIKE,))[0].calls] == ["x", "x_3", "x_2"]


def test_a_result_too_many_is_refused() -> None:
    with pytest.raises(BadRequest, match="'x' has more results than calls") as caught:
        turns((TWINS, RESULT, RESULT, RESULT))
    assert caught.value.param == "messages[3].tool_call_id"


def test_an_id_of_its_own_may_come_again() -> None:
    one = Message("assistant", None, tool_calls=(ToolCall("x", "get_c", "{}"),))
    assert answered(one, RESULT, RESULT) == ["get_c", "get_c"]
    assert answered(TWINS, RESULT, RESULT, one, RESULT, RESULT) == ["get_a", "get_b", "get_c", "get_c"]
    assert turns((one,))[0].notes == ()
