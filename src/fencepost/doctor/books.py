"""Is the SQL side there: can the ledger and the outbox be reached, are their tables made, do the clocks agree?"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from fencepost.clock import wall_ms
from fencepost.doctor.finding import Finding, bad, doubtful, fine
from fencepost.errors import ConfigurationError, FencepostError, LedgerUnavailable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from fencepost.app import Fencepost
    from fencepost.ledger import Ledger

__all__ = ["books"]

_NOW: Final = {"postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"}
_SKEW_WARNING_MS: Final = 1_000
_SKEW_ERROR_MS: Final = 86_400_000
_BEHIND: Final = 100_000


def books(app: Fencepost) -> list[Finding]:
    """What can be seen of the application's ledger and outbox. Blocks, at most for the connect timeouts of both.

    A database that is away is a warning: jobs go on without it. Missing tables are an error: they will not come.
    """
    found: list[Finding] = []
    if app.ledger_url is None:
        return found + _outbox(app)
    try:
        if not _made(app.ledger_url):
            return [*found, fine("ledger", "its file is not there yet; the first that writes makes it"), *_outbox(app)]
        ledger = app.ledger
        assert ledger is not None
        found += _ledger(ledger)
    except ConfigurationError as error:
        found.append(bad("ledger", _line(error), ""))
    except FencepostError as error:
        found.append(
            doubtful(
                "ledger",
                f"it cannot be asked: {_line(error)}",
                "jobs run all the same, and what happens is kept in Redis until it is back; durable ones are refused",
            )
        )
    return found + _outbox(app)


def _line(error: FencepostError) -> str:
    """What went wrong in one line without a full stop: the doctor adds its own."""
    said = error.cause if isinstance(error, LedgerUnavailable) else str(error)
    return " ".join(said.split()).rstrip(". ")


def _made(url: str) -> bool:
    """False for a SQLite file that is not there: to look at it would make it."""
    if importlib.util.find_spec("sqlalchemy") is None:
        return True
    from fencepost.sql.engines import absent_file

    return absent_file(url) is None


def _ledger(ledger: Ledger) -> list[Finding]:
    from fencepost.ledger.status import status

    now = status(ledger)
    found = [
        fine("ledger", f"{ledger.where} is there, {now.copied} events copied, {now.open_durable} durable jobs open")
    ]
    if now.lost:
        found.append(
            doubtful(
                "ledger_lost",
                f"{now.lost} events were gone from Redis before they were copied; the audit has holes there",
                "`fencepost ledger verify` names them. Let an archiver run always, or raise event_cap",
            )
        )
    with ledger.reading("look at the clock") as connection:
        skew_ms = _skew_ms(connection)
    if abs(skew_ms) > _SKEW_ERROR_MS:
        found.append(
            bad(
                "ledger_clock",
                f"the clock of the database is {skew_ms / 3_600_000:+.1f} h from this host's; with Redis on such a "
                "clock tokens would run ahead for as long",
                "set the clocks right (NTP) before anything is claimed",
            )
        )
    elif abs(skew_ms) > _SKEW_WARNING_MS:
        found.append(
            doubtful(
                "ledger_clock",
                f"the clock of the database is {skew_ms:+d} ms from this host's",
                "let NTP run on both; times in the ledger are those of Redis",
            )
        )
    return found


def _skew_ms(connection: Connection) -> int:
    from sqlalchemy import text

    query = _NOW.get(connection.dialect.name)
    if query is None:  # a file has no clock of its own
        return 0
    before = wall_ms()
    told = int(connection.execute(text(query)).scalar_one())
    return told - (before + wall_ms()) // 2


def _outbox(app: Fencepost) -> list[Finding]:
    if app.outbox_url is None:
        return []
    from fencepost.sql.engines import existing, open_engine
    from fencepost.sql.faults import short_cause
    from fencepost.sql.upgrade import missing

    try:
        engine = open_engine(existing(app.outbox_url))
    except ConfigurationError as error:
        return [bad("outbox", _line(error), "")]
    try:
        with engine.connect() as connection:
            absent = missing(connection, "outbox")
    except Exception as error:  # noqa: BLE001 - whatever a driver raises
        return [
            doubtful(
                "outbox", f"it cannot be asked: {short_cause(error)}", "what waits in it is published when it is back"
            )
        ]
    finally:
        engine.dispose()
    if absent:
        where = engine.url.render_as_string(hide_password=True)
        return [bad("outbox", f"{', '.join(absent)} missing in {where}", f"run `fencepost sql upgrade {where}`")]
    return [fine("outbox", f"{engine.url.render_as_string(hide_password=True)} is there")]
