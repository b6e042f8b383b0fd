"""The next request of a sequence that repeats."""

from __future__ import annotations

from torch_topoopt.reconfiguration.request_sequence import RequestSequence


def test_each_request_of_a_repeated_step_is_expected_though_some_come_several_times() -> None:
    sequence, step = RequestSequence(), "AAABAC"
    for request in step:
        sequence.add(request)
    for request in step + step:
        sequence.add(request)
    for request in step:
        assert sequence.expected() == (request,)
        sequence.add(request)


def test_nothing_is_expected_after_a_new_request() -> None:
    sequence = RequestSequence()
    assert sequence.expected() == ()
    for request in "ABAB":
        sequence.add(request)
    sequence.add("C")
    assert sequence.expected() == ()


def test_a_wrong_expectation_is_not_repeated_after_the_same_requests() -> None:
    sequence = RequestSequence()
    for request in "ABCDABC":
        sequence.add(request)
    assert sequence.expected() == ("D",)
    sequence.doubt("D")
    assert sequence.expected() == ()
    for request in "EABC":
        sequence.add(request)
    assert sequence.expected() == ("E",)
    for request in "DABC":
        sequence.add(request)
    assert sequence.expected() == ("E",), "as after the first D, A, B and C"
    for request in "DABC":
        sequence.add(request)
    assert sequence.expected() == (), "D follows, which was wrong once"


def test_a_wrong_expectation_is_forgiven_after_it_would_have_been_right_eight_times() -> None:
    sequence = RequestSequence()
    for request in "ABCDABCD":
        sequence.add(request)
    for request in "ABC":
        sequence.add(request)
    sequence.doubt("D")
    for _ in range(8):
        assert sequence.expected() == ()
        for request in "DABC":
            sequence.add(request)
    assert sequence.expected() == ("D",)


def test_several_requests_are_expected_in_their_order() -> None:
    sequence = RequestSequence()
    for request in "ABCABC":
        sequence.add(request)
    assert sequence.expected(2) == ("A", "B")
    sequence.add("A")
    assert sequence.expected(5) == ("B", "C", "A")
