"""The fence: effects in the user's own database that commit at most once, and only by the newest holder.

`run.guarded(…)` does all of it. Who owns the transaction calls `install` before it, and `effect` inside it.
Imports neither SQLAlchemy nor a driver.
"""

from .guarded import Guarded
from .holder import Holder
from .own import OwnEffect, effect, install, install_sync
from .section import Effect

__all__ = ["Effect", "Guarded", "Holder", "OwnEffect", "effect", "install", "install_sync"]
