"""The shop's database: customers, orders, stock, and the invoices that must not be doubled.

python books.py    makes the tables and a few rows; it may be run again
"""

import os

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, create_engine, select
from sqlalchemy.dialects.sqlite import insert

URL = os.environ.get("SHOP_DATABASE_URL", "sqlite:///shop.sqlite")
engine = create_engine(URL)
metadata = MetaData()

customers = Table("customers", metadata, Column("id", Integer, primary_key=True), Column("mail", Text))
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("cents", Integer))
stock = Table("stock", metadata, Column("sku", Text, primary_key=True), Column("pieces", Integer))
invoices = Table(
    "invoices",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("order_id", Integer),
    Column("cents", Integer),
    Column("token", BigInteger),
)


def has(table: Table, key: object) -> bool:
    """Whether there is a row with this primary key."""
    [column] = table.primary_key.columns
    with engine.connect() as connection:
        return connection.execute(select(column).where(column == key)).first() is not None


def invoices_of(order_id: int) -> list[int]:
    """The numbers of an order's invoices; one, if all goes well."""
    with engine.connect() as connection:
        wanted = select(invoices.c.number).where(invoices.c.order_id == order_id)
        return list(connection.execute(wanted).scalars())


def main() -> None:
    from fencepost.sql.upgrade import upgrade

    upgrade(URL)  # the guard's tables, beside the shop's own; the same as `fencepost sql upgrade`
    metadata.create_all(engine)
    with engine.begin() as connection:
        for table, rows in (
            (customers, [{"id": 1, "mail": "ann@example.org"}, {"id": 2, "mail": "bob@example.org"}]),
            (orders, [{"id": number, "cents": 1_000 + number} for number in range(1, 101)]),
            (stock, [{"sku": "mug", "pieces": 0}, {"sku": "lamp", "pieces": 0}]),
        ):
            connection.execute(insert(table).on_conflict_do_nothing(), rows)


if __name__ == "__main__":
    main()
