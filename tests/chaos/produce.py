"""A producer process: enqueues one unique job for each key, all as soon as the gate is open, and prints the answers.

python -m tests.chaos.produce GATE KEY...
"""

from __future__ import annotations

import json
import sys
import time

from tests.chaos.handlers import folder, unique


def main(gate: str, keys: list[str]) -> None:
    (folder / f"{gate}.{sys.argv[3]}").touch()
    while not (folder / gate).exists():
        time.sleep(0.001)
    jobs = [unique.enqueue_sync(key) for key in keys]
    print(json.dumps([(job.id, job.duplicate) for job in jobs]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))
