"""A producer process: enqueues one unique job for each key as soon as the gate is open, and prints the answers.

python -m tests.chaos.produce GATE KEY,KEY,... NAME    says that it is ready by a file GATE.NAME
"""

from __future__ import annotations

import json
import sys
import time

from tests.chaos.handlers import folder, unique


def main(gate: str, keys: list[str], name: str) -> None:
    unique.options(delay=3_600).enqueue_sync(f"{gate}.{name}")  # connected, and every module loaded
    (folder / f"{gate}.{name}").touch()
    while not (folder / gate).exists():
        time.sleep(0.001)
    jobs = {key: unique.enqueue_sync(key) for key in keys}
    print(json.dumps({key: (job.id, job.duplicate) for key, job in jobs.items()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), sys.argv[3])
