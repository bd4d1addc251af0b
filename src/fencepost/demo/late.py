"""A handler that was asleep and does not want to know: it writes all the same.

An async handler is cancelled when its lease is lost. A thread cannot be interrupted: when its process wakes up, it goes
on with its next line. There Fencepost would stop it by the clock, which went on while it was frozen. So the demo takes
the clock away from those runs that were caught in the middle, and lets them try what a run can try: report progress,
report the outcome, and (in handlers.py, right after this) write to the shop's database. Each is refused where it
arrives, not by the good manners of the handler.
"""

from __future__ import annotations

import math
from typing import Final

from fencepost import Fencepost, Run
from fencepost.clock import new_nonce
from fencepost.demo.records import Note
from fencepost.errors import FenceError
from fencepost.store import Outcome, Request

__all__ = ["LATE_RESULT", "insist"]

LATE_RESULT: Final = b'"written by a late run"'
"""No job may have it in the end."""


def insist(app: Fencepost, run: Run, note: Note) -> Run:
    """Report progress, and where that is refused, the outcome too; note both refusals.

    Returns the run to go on with: the same as long as it is the owner, else one of the same claim that believes in its
    lease for ever.
    """
    try:
        run.progress_sync(0.5, "half of it")
    except FenceError:
        note.refused("progress")
    else:
        return run  # still the owner: nothing to insist on
    # The worker knows better and would not send this any more; a worker without a clock of its own would.
    outcome = Outcome(run.job_id, str(run.token), run.nonce, "DONE", (LATE_RESULT,))
    request = Request(run.worker_id, "late", new_nonce(), 0, round(app.lease_s * 1000), "", ())
    served = app.link.synchronous.run(app.link.store.finish([outcome], request))
    if served.replies[0][0] != "OK":
        note.refused("finish")
    return Run(run.claimed, run.handler, app.link, run.worker_id, math.inf, run.lease_s)
