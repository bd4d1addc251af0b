"""A shop's process: one order and its invoice job in one transaction, then it says so and waits to be killed.

python -m tests.ledger.shopping REDIS_URL NAMESPACE SQL_URL ORDER_ID
"""

from __future__ import annotations

import sys
import time

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from fencepost import Fencepost


def main(url: str, namespace: str, sql: str, order_id: int) -> None:
    app = Fencepost(url, namespace=namespace, outbox=sql, give_up=1)
    handler = app.job(kind="invoice")(lambda order_id: None)
    with Session(create_engine(sql)) as session:
        job = handler.enqueue_in_sync(session, order_id=order_id)
        session.commit()
    print(job.id, flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
