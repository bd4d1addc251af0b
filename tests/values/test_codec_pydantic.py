"""Pydantic models as arguments, where pydantic is installed."""

from datetime import datetime
from decimal import Decimal

import pytest

from fencepost.codec import ArgumentsCodec, encode_result
from fencepost.errors import ArgumentsRefused

pydantic = pytest.importorskip("pydantic")


class Line(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    price: Decimal = pydantic.Field(alias="unitPrice")
    ratio: float = 0.0
    at: datetime | None = None


class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    id: int
    lines: list[Line] = pydantic.Field(default_factory=list)


def invoice(order: Order, spare: list[Order] | None = None) -> None: ...


CODEC = ArgumentsCodec(invoice)


def test_a_model_arrives_equal():
    order = Order(id=1, lines=[Line(unitPrice=Decimal("1.10"))])
    assert CODEC.decode(CODEC.encode({"order": order, "spare": [order]})) == {"order": order, "spare": [order]}


def test_the_json_of_a_model_becomes_the_model():
    raw = CODEC.encode({"order": {"id": 1, "lines": [{"unitPrice": "2"}]}})
    assert CODEC.decode(raw) == {"order": Order(id=1, lines=[Line(unitPrice=Decimal(2))])}


@pytest.mark.parametrize(
    ("order", "path"),
    [
        ({"id": 1, "lines": [{"unitPrice": "1"}, {"unitPrice": "x"}]}, "order.lines[1].unitPrice"),
        (Order(id=1, lines=[Line(unitPrice=1, ratio=float("nan"))]), "order.lines[0].ratio"),
        (Order(id=1, lines=[Line(unitPrice=1, at="2025-01-01T00:00:00")]), "order.lines[0].at"),
        ({"id": 1, "lines": [{"unitPrice": "1", "at": "2025-01-01T00:00:00"}]}, "order.lines[0].at"),
    ],
)
def test_a_problem_inside_a_model_is_refused_with_its_path(order, path):
    with pytest.raises(ArgumentsRefused) as caught:
        CODEC.encode({"order": order})
    assert caught.value.path == path
    assert "\n" not in str(caught.value)


def test_a_model_can_be_a_result_and_has_a_schema():
    assert encode_result(Order(id=1)) == b'{"id":1,"lines":[]}'
    assert "order" in CODEC.schema()["properties"]
