"""A simulated publisher: sends numbered rows, repeats, gives up, and moves between sites."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from siltstone.store.writer.replication.actions import (
    Answer,
    CallStored,
    Closed,
    Confirmed,
    Refused,
)
from siltstone.store.writer.replication.producers import make_producer
from tests.simulation.requests import Request

if TYPE_CHECKING:
    from tests.simulation.world import World


def producer_of(name: str, session: int) -> bytes:
    return make_producer(prefix_of(name), session)


def prefix_of(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8).digest()


class Publisher:
    """One publisher. What it believes is checked against what the log holds."""

    def __init__(self, world: World, name: str, calls: int) -> None:
        self.world = world
        self.name = name
        self.calls = calls
        self.session = 0
        self.sender = world.kit.sender(producer_of(name, 0))
        self.acked: set[int] = set()
        self.refused: set[int] = set()
        # It moved, and its old producer is not closed yet.
        self.settling = False

    def is_done(self) -> bool:
        made = len(self.acked) + len(self.refused)
        return made >= self.calls and not self.settling and not self.sender.open_calls()

    def turn(self) -> None:
        """Do one thing."""
        world, rng = self.world, self.world.rng
        if self.settling:
            producer = producer_of(self.name, self.session - 1)
            request = world.request("close", self.name, self.session - 1)
            request.producer = producer
            world.send(request)
            return
        opened = self.sender.open_calls()
        made = len(self.acked) + len(self.refused) + len(opened)
        if made < self.calls and len(opened) < 3 and rng.random() < 0.7:
            self.attempt(self.sender.begin())
        elif opened:
            number = rng.choice(opened)
            if rng.random() < 0.6 or not self.give_up(number):
                self.attempt(number)
        if opened and world.is_faulty and rng.random() < 0.03:
            self.move()
        if rng.random() < 0.15:
            world.ask(self.name)

    def attempt(self, number: int) -> None:
        request = self.world.request("call", self.name, self.session)
        request.number = number
        request.call = self.sender.attempt(number, request.id)
        self.world.send(request)

    def give_up(self, number: int) -> bool:
        if not self.sender.give_up(number):
            return False
        self.refused.add(number)
        self.world.check(
            self.world.is_damaged or (self.name, number) not in self.world.truth.rows_at,
            f"refused for certain, but counted: {self.name} {number}",
        )
        return True

    def move(self) -> None:
        """Another site sends from now on, as another producer."""
        self.session += 1
        self.settling = True

    def answer(self, request: Request, answer: Answer) -> None:
        if request.kind == "ask":
            if isinstance(answer, Confirmed):
                self.world.check(
                    answer.index >= request.needed or self.world.is_damaged,
                    f"an answer from the past: index {answer.index}, but {request.needed} "
                    "was acknowledged before the question",
                )
            return
        if request.kind == "close":
            if isinstance(answer, Closed) and self.settling and request.session + 1 == self.session:
                self.take_over(answer.last)
            return
        if request.session != self.session:
            return
        match answer:
            case CallStored():
                if self.sender.stored(request.number):
                    self.acknowledged(request.number)
            case Refused():
                self.sender.refused(request.number, request.id)
            case _:
                pass

    def take_over(self, last: int) -> None:
        self.settling = False
        producer = producer_of(self.name, self.session)
        self.sender, done = self.sender.successor(producer, last)
        for number in done:
            self.acknowledged(number)

    def acknowledged(self, number: int) -> None:
        self.acked.add(number)
        self.world.acknowledged((self.name, number))
