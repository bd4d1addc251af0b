"""A client of the HTTP service: `Client` and `AsyncClient`. Needs the extra `client`."""

try:
    import httpx2  # noqa: F401
except ImportError as error:
    from fencepost.errors import ConfigurationError

    raise ConfigurationError("client", "httpx2 is not installed", 'Install the extra: "fencepost[client]".') from error

from fencepost.client.answers import (
    Accepted,
    Bulk,
    Claimed,
    Claims,
    Event,
    Held,
    JobInfo,
    Kind,
    LeaseView,
    NewJob,
    Outcome,
    Page,
    Queue,
    Ready,
    Renewal,
    Resource,
    Settled,
)
from fencepost.client.clients import AsyncClient, Client
from fencepost.client.problems import ApiError, NoAnswer

__all__ = [
    "Accepted",
    "ApiError",
    "AsyncClient",
    "Bulk",
    "Claimed",
    "Claims",
    "Client",
    "Event",
    "Held",
    "JobInfo",
    "Kind",
    "LeaseView",
    "NewJob",
    "NoAnswer",
    "Outcome",
    "Page",
    "Queue",
    "Ready",
    "Renewal",
    "Resource",
    "Settled",
]
