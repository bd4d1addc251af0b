"""A web server with idempotent endpoints, to be killed and frozen.

python -m tests.http.idempotent_process URL NAMESPACE FOLDER prints its port. While the file FOLDER/hold is there, its
handlers wait, each after it has made FOLDER/began-<pid>.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import Fencepost
from fencepost.api import Idempotent, IdempotentRoute, Once
from tests.support.waiting import eventually

LEASE_S = 1.0
INSERT = text("INSERT INTO orders (made_by) VALUES (:pid) RETURNING number")


def application(url: str, name: str, folder: Path) -> FastAPI:
    queue = Fencepost(url, namespace=name, give_up=5.0)
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'orders.sqlite'}", connect_args={"timeout": 5})
    idempotent = Idempotent(queue, scope=lambda request: "shop", lease=LEASE_S)
    router = APIRouter(route_class=IdempotentRoute)

    async def hold() -> None:
        (folder / f"began-{os.getpid()}").touch()
        await eventually(lambda: not (folder / "hold").exists(), timeout=30)

    @router.post("/plain", dependencies=[Depends(idempotent)])
    async def plain(order: dict[str, Any]) -> dict[str, Any]:
        await hold()
        return {"by": os.getpid(), **order}

    @router.post("/guarded/{where}")
    async def guarded(where: str, once: Annotated[Once, Depends(idempotent)]) -> dict[str, Any]:
        if where == "before":
            await hold()
        async with once.guarded(engine, "order") as effect:
            if effect.first:
                effect.result = (await effect.session.execute(INSERT, {"pid": os.getpid()})).scalar_one()
        if where == "after":
            await hold()
        return {"by": os.getpid(), "number": effect.result}

    served = FastAPI()
    served.include_router(router)
    return served


def main(url: str, name: str, folder: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(application(url, name, Path(folder)), log_level="warning", ws="none")
    asyncio.run(uvicorn.Server(config).serve([listening]))


if __name__ == "__main__":
    main(*sys.argv[1:])
