"""A private Valkey or Redis under our own supervisor: for development, tests and the demo.

One data folder, one server; who comes second attaches; the server dies with the process that started it.
"""

from fencepost.embedded.binary import BINARY_SETTING, OLDEST_SERVER, find_binary, server_version
from fencepost.embedded.folder import DATA_SETTING, default_path
from fencepost.embedded.server import EmbeddedServer

__all__ = [
    "BINARY_SETTING",
    "DATA_SETTING",
    "OLDEST_SERVER",
    "EmbeddedServer",
    "default_path",
    "find_binary",
    "server_version",
]
