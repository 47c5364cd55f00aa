"""A process that commits until it is killed: `python -m tests.support.tx_writer DIRECTORY SEED`.

Threads move money between accounts, each transfer with an id. They print `begin ID` before a
transfer and `done ID SERIAL` after its commit. The output may be cut off at any byte.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from threading import Lock, Thread

import siltstone
from siltstone.errors import ConflictError
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction

NAME = "bank"
ACCOUNTS = [f"account/{number}" for number in range(20)]
START = 1_000
THREADS = 4
SETTINGS = KeyValueSettings(timed=False)


def ensure_accounts(database: KeyValueDatabase) -> None:
    """Set the start balance of every account, once."""
    with database.transaction(id="accounts") as tx:
        for account in ACCOUNTS:
            tx.write(account, b"%d" % START)


def transfer(source: str, target: str, amount: int, name: str) -> Callable[[Transaction], None]:
    """Return a transaction that moves money and records the transfer."""

    def move(tx: Transaction) -> None:
        tx.write(source, b"%d" % (int(tx.get(source) or b"") - amount))
        tx.write(target, b"%d" % (int(tx.get(target) or b"") + amount))
        tx.write(f"trace/{name}", f"{source} {target} {amount}".encode())

    return move


def main() -> None:
    """Commit for ever."""
    path, seed = sys.argv[1], sys.argv[2]
    telling = Lock()

    def tell(line: str) -> None:
        with telling:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    with siltstone.open(path) as store:
        database = store.keyvalue(NAME, SETTINGS)
        ensure_accounts(database)

        def work(number: int) -> None:
            rng = random.Random(f"{seed} {number}")
            turn = 0
            while True:
                turn += 1
                name = f"{seed}-{number}-{turn}"
                source, target = rng.sample(ACCOUNTS, 2)
                tell(f"begin {name}")
                try:
                    done = database.transact(
                        transfer(source, target, rng.randrange(1, 9), name), id=name, retries=3
                    )
                except ConflictError:
                    tell(f"refused {name}")
                else:
                    tell(f"done {name} {done.serial}")

        threads = [Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
