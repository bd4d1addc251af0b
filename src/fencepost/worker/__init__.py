"""The worker: lanes bring jobs and take outcomes, the heartbeat keeps leases, runs are what handlers see."""

from fencepost.worker.run import Run
from fencepost.worker.worker import Worker

__all__ = ["Run", "Worker"]
