"""A process that holds a guarded section open: python -m tests.guard.holder_process URL JOB WHERE

WHERE: "work" (it has written, and goes on working) or "commit" (it has verified, and is about to COMMIT). There it
prints "standing" and waits for a line; at the end it prints what became of the section. Its lease is 1 s, token 33.
"""

from __future__ import annotations

import sys

from sqlalchemy import create_engine, event

from fencepost.fence import Guarded
from tests.guard.holders import Lease, PaperHolder
from tests.guard.scene import add_one


def stand() -> None:
    print("standing", flush=True)
    sys.stdin.readline()


def main(url: str, job: str, where: str) -> None:
    engine = create_engine(url)
    holder = PaperHolder(Lease(owner="b"), job, 33, "a", lease_s=1.0)
    try:
        with Guarded(holder, engine, "add") as effect:
            add_one(effect.session, holder.claim)
            effect.result = "a"
            if where == "work":
                stand()
            else:
                event.listen(engine, "commit", lambda _connection: stand())
        print("done" if effect.first else f"found {effect.result}", flush=True)
    except Exception as error:  # noqa: BLE001 - told to the test
        print(type(error).__name__, " ".join(str(error).split()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
