"""What plain sqlite3 and psycopg need, and what they do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.guard.holding import dsn_of, file_of


def test_the_fence_imports_neither_sqlalchemy_nor_a_driver():
    """Whoever has plain sqlite3 needs neither; and `import fencepost` must not become slower for them."""
    program = (
        "import sqlite3, sys, fencepost.fence, fencepost.sql.channel\n"
        "fencepost.sql.channel.channel_of(sqlite3.connect(':memory:'))\n"
        "print([name for name in ('sqlalchemy', 'psycopg', 'django') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


PLAIN = """
import sqlite3, sys
sys.modules["sqlalchemy"] = None
import psycopg
from fencepost import fence
from fencepost.errors import ConfigurationError
from fencepost.sql.channel import channel_of

class Holder:
    namespace, job_id, token, nonce, lease_s = "shop", "j1", 10, "n-ours", 30.0
    fence_resource = staticmethod(lambda resource: "order:1")
    effect_key = staticmethod(lambda name: "j1:" + name)
    check = staticmethod(lambda: None)
    note_effect = staticmethod(lambda key, first: None)

where, name = sys.argv[1:]
connect = lambda: (sqlite3 if name == "sqlite" else psycopg).connect(where)
with fence.Guarded(Holder(), connect, "one") as effect:
    effect.session.execute("INSERT INTO done (note) VALUES ('one')")
print(effect.first)
connection = connect()
fence.install_sync(connection, Holder())
with fence.effect(connection, Holder(), "two") as effect:
    connection.execute("INSERT INTO done (note) VALUES ('two')")
connection.commit()
print(effect.first)
try:
    channel_of(object())
except ConfigurationError:
    print("refused")
"""


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_sqlite3_and_psycopg_are_guarded_where_sqlalchemy_is_not_installed(name, new_base):
    base = new_base(name)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, file_of(base.url) if name == "sqlite" else dsn_of(base.url), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True\nTrue\nrefused\n", 0), done.stderr
    assert base.done == ["one", "two"]
    assert len(base.effects) == 2
