"""The ledger: a memory in SQL that outlives Redis. Needs the extra `sql`."""

from fencepost.ledger.archiver import Archiver, Copied
from fencepost.ledger.book import Ledger, LedgerEvent, LedgerJob

__all__ = ["Archiver", "Copied", "Ledger", "LedgerEvent", "LedgerJob"]
