"""What an engine finds that keeps a sequence in each slot. tests/engines/test_routing_real.py compares with the real one."""

from gateway.routing.chain import token_chain
from gateway.routing.slots import Keys, Slots


def prompt(*parts: tuple[str, int]) -> Keys:
    """Keys of parts, so many chunks each, that are alike where their names are."""
    ids = [ord(name) * 10_000 + at for name, length in parts for at in range(length)]
    return token_chain(ids, 1)


def asked(slots: Slots, request: str, keys: Keys, now_s: float) -> int:
    """A request that is over at once: what it found."""
    found = slots.finds(keys)
    slots.begins(request, keys)
    slots.ends(request, keys, now_s)
    return found


SHARED = ("s", 40)


def test_a_conversation_finds_all_of_it() -> None:
    slots = Slots(2)
    assert [asked(slots, "r", prompt(("a", 10 * turn)), turn) for turn in range(1, 6)] == [0, 10, 20, 30, 40]


def test_more_conversations_than_slots_are_saved_and_taken_out() -> None:
    slots = Slots(2)
    for name in "abcd":
        assert asked(slots, name, prompt((name, 20)), ord(name)) == 0
    assert [asked(slots, name, prompt((name, 30)), 200.0 + number) for number, name in enumerate("abcdabcd")][:4] == [20] * 4


def test_of_two_at_a_time_one_makes_what_they_share() -> None:
    slots = Slots(2)
    asked(slots, "1", prompt(SHARED, ("a", 10)), 1.0)
    slots.begins("2", prompt(SHARED, ("b", 10)))
    assert slots.finds(prompt(SHARED, ("c", 10))) == 0
    slots.ends("2", prompt(SHARED, ("b", 10)), 2.0)
    assert slots.finds(prompt(SHARED, ("c", 10))) == 40


def test_a_new_conversation_cuts_an_old_one_back_where_they_share_most_of_it() -> None:
    slots = Slots(1)
    asked(slots, "1", prompt(SHARED, ("a", 10)), 1.0)
    asked(slots, "2", prompt(SHARED, ("b", 10)), 2.0)
    assert slots.finds(prompt(SHARED, ("a", 20))) == 40


def test_what_lies_in_another_slot_is_saved_when_a_request_begins() -> None:
    slots = Slots(2)
    asked(slots, "1", prompt(SHARED, ("a", 10)), 1.0)
    asked(slots, "2", prompt(("x", 10)), 2.0)
    asked(slots, "3", prompt(SHARED, ("b", 10)), 3.0)
    assert slots.finds(prompt(SHARED, ("b", 20))) == 50
    assert asked(slots, "4", prompt(("y", 10)), 4.0) == 0
    assert slots.finds(prompt(SHARED, ("a", 90))) == 40  # the slot keeps most of what it has, so that nothing is taken out
    asked(slots, "5", prompt(("z", 10)), 5.0)
    assert slots.finds(prompt(SHARED, ("a", 20))) == 50


def test_and_not_where_they_share_less_than_half() -> None:
    slots = Slots(1)
    asked(slots, "1", prompt(SHARED, ("a", 50)), 1.0)
    assert asked(slots, "2", prompt(SHARED, ("b", 50)), 2.0) == 40
    assert slots.finds(prompt(SHARED, ("a", 60))) == 90


def test_a_short_beginning_in_common_does_not_choose_the_slot() -> None:
    """It takes the one that was left first; what that held is saved."""
    slots = Slots(2)
    asked(slots, "1", prompt(("x", 1), ("a", 50)), 1.0)
    asked(slots, "2", prompt(("x", 1), ("b", 50)), 2.0)
    asked(slots, "3", prompt(("x", 1), ("c", 50)), 3.0)
    assert asked(slots, "4", prompt(("x", 1), ("a", 60)), 4.0) == 51


def test_one_that_waits_for_a_slot_may_find_what_any_has() -> None:
    slots = Slots(1)
    slots.begins("1", prompt(("a", 10)))
    assert slots.finds(prompt(("a", 20))) == 10
    slots.begins("2", prompt(("b", 10)))
    slots.begins("3", prompt(("a", 20)))
    slots.ends("3", (), 1.0)  # its client left
    slots.ends("1", prompt(("a", 15)), 2.0)
    assert slots.finds(prompt(("b", 20))) == 10  # the second has the slot
    slots.ends("2", prompt(("b", 10)), 3.0)
    assert slots.finds(prompt(("a", 20))) == 15


def test_what_is_forgotten_is_not_found() -> None:
    slots = Slots(1)
    for at, name in enumerate("abc"):
        asked(slots, name, prompt((name, 20)), float(at))
    slots.forget(1.0)
    assert [slots.finds(prompt((name, 20))) for name in "abc"] == [0, 20, 20]
    slots.forget(9.0)
    assert not any(slots.finds(prompt((name, 20))) for name in "abc")


def test_an_end_that_no_request_has_is_nothing() -> None:
    slots = Slots(1)
    asked(slots, "1", prompt(("a", 9)), 1.0)
    slots.ends("x", (), 2.0)
    assert slots.finds(prompt(("a", 9))) == 9


def test_slots_that_are_too_many_go_once_they_are_free_and_new_ones_take_who_waits() -> None:
    slots = Slots(2)
    slots.begins("1", prompt(("a", 10)))
    slots.begins("2", prompt(("b", 10)))
    slots.begins("3", prompt(("c", 10)))  # waits
    slots.follow(3)
    slots.ends("3", prompt(("c", 10)), 1.0)
    assert slots.finds(prompt(("c", 20))) == 10
    slots.follow(1)
    slots.ends("1", prompt(("a", 10)), 2.0)
    slots.follow(1)
    assert slots.finds(prompt(("b", 10))) == 10  # it waits there for the one that is left
    slots.ends("2", prompt(("b", 10)), 3.0)
    assert asked(slots, "4", prompt(("b", 20)), 4.0) == 10
