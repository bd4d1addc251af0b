"""The HTTP service: enqueue, follow, act, and work from any language. Needs the extra `server`.

Beside it, for endpoints of your own: Idempotent, IdempotentRoute and Once.
"""

from fencepost.api.factory import asgi, fencepost_router
from fencepost.api.idempotent import Idempotent, IdempotentRoute, Once
from fencepost.api.settings import ApiSettings

__all__ = ["ApiSettings", "Idempotent", "IdempotentRoute", "Once", "asgi", "fencepost_router"]
