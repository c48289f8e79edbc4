"""Orders of a shop, and the reports made of them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

logger = logging.getLogger(__name__)

NO_ORDER = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Item:
    """One line of an order; it's priced when it is added."""

    name: str
    price: Decimal
    count: int = 1

    @property
    def total(self) -> Decimal:
        return self.price * self.count

    @property
    def label(self) -> str:
        return f"{self.count} x {self.name} ({self.price})"


@dataclass
class Order:
    id: str = NO_ORDER
    items: list[Item] = field(default_factory=list)

    def add(self, name: str, price: Decimal, *, count: int = 1) -> Item:
        if count < 1:
            raise ValueError(f"the count of {name!r} is {count}")
        item = Item(name, price, count)
        self.items.append(item)
        return item

    def total(self) -> Decimal:
        return sum((item.total for item in self.items), Decimal(0))


def totals_by_name(orders: Iterable[Order]) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for order in orders:
        for item in order.items:
            try:
                totals[item.name] += item.total
            except ArithmeticError:
                logger.exception("no total of %s", item.name)
            else:
                logger.debug("counted %s", item.label)
    return dict(totals)


def report(orders: Iterable[Order]) -> str:
    lines = [
        f"{name:<20} {total:>10.2f}" for name, total in sorted(totals_by_name(orders).items(), key=lambda pair: pair[1])
    ]
    head = """
Name                      Total
-------------------------------
"""
    return head + "\n".join(lines)
