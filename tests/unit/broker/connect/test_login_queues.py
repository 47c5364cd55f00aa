from __future__ import annotations

from functools import partial

from siltstone.broker.connect.login_queues import LANES, WAITING_MAX, LoginQueues

KEY = ("u", "192.0.2.7")


def test_a_few_are_judged_at_once_and_each_that_ends_lets_one_in() -> None:
    lanes, begun = LoginQueues(lambda act: act()), list[int]()
    for number in range(LANES + 2):
        assert lanes.begin(KEY, partial(begun.append, number))
    assert (begun, len(lanes)) == (list(range(LANES)), LANES)
    lanes.end(KEY)
    assert begun == list(range(LANES + 1))
    for _ in range(LANES + 1):
        lanes.end(KEY)
    assert (begun, len(lanes)) == (list(range(LANES + 2)), 0)


def test_others_do_not_wait_for_them() -> None:
    lanes, begun = LoginQueues(lambda act: act()), list[int]()
    for number in range(LANES):
        lanes.begin(KEY, partial(begun.append, number))
    for key in (("v", KEY[1]), ("u", "192.0.2.8")):
        lanes.begin(key, partial(begun.append, 99))
    assert begun == [*range(LANES), 99, 99]


def test_so_many_wait_and_no_more() -> None:
    lanes, begun = LoginQueues(lambda act: act()), list[int]()
    taken = [
        lanes.begin(KEY, partial(begun.append, number)) for number in range(LANES + WAITING_MAX + 1)
    ]
    assert taken == [True] * (LANES + WAITING_MAX) + [False]
