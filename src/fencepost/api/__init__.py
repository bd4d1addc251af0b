"""The HTTP service: enqueue, follow, act, and work from any language. Needs the extra `server`."""

from fencepost.api.factory import asgi, fencepost_router
from fencepost.api.settings import ApiSettings

__all__ = ["ApiSettings", "asgi", "fencepost_router"]
