"""The 27 products of the shop, and the rule by which customers choose among them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from decimal import Decimal

SMALLEST_DRAW, LARGEST_DRAW = 3, 200
"""The draws by which customers choose, both inclusive."""


@dataclass(frozen=True)
class Family:
    """What the products of a family have in common. Money is in dollars; `stock` is the opening
    stock.
    """

    category: str
    cogs: Decimal
    price: Decimal
    stock: int
    gets_supplements: int
    """Of ten purchases, how many have a supplement."""


FAMILIES = {
    "CS": Family("Classic Smoothies", Decimal("1.50"), Decimal("4.99"), 75, 2),
    "SF": Family("Superfoods Smoothies", Decimal("2.10"), Decimal("5.99"), 50, 5),
    "SC": Family("Supercharged Smoothies", Decimal("2.70"), Decimal("5.99"), 35, 5),
    "IS": Family("Indulgent Smoothies", Decimal("2.20"), Decimal("5.49"), 60, 2),
}


@dataclass(frozen=True)
class CatalogProduct:
    """A product. `contains` holds some of: f (fruit), v (veggies), n (nuts), c (caffeine)."""

    product_id: str
    item: str
    contains: str
    propensity_to_buy: int
    """Of all products up to this one: see `chosen`."""

    @property
    def family(self) -> Family:
        """The family, which the first two letters of the id name."""
        return FAMILIES[self.product_id[:2]]


PRODUCTS = (
    CatalogProduct("CS01", "Orange Sunrise", "f", 3),
    CatalogProduct("CS02", "Strawberry Breeze", "f", 6),
    CatalogProduct("CS03", "Blueberry Bay", "f", 15),
    CatalogProduct("CS04", "Mango Morning", "f", 18),
    CatalogProduct("CS05", "Pineapple Wave", "f", 27),
    CatalogProduct("CS06", "Banana Classic", "f", 36),
    CatalogProduct("CS07", "Peach Orchard", "f", 39),
    CatalogProduct("CS08", "Cherry Lane", "f", 54),
    CatalogProduct("CS09", "Raspberry Road", "f", 66),
    CatalogProduct("CS10", "Kiwi Lime", "f", 75),
    CatalogProduct("CS11", "Melon Mint", "f", 78),
    CatalogProduct("SF01", "Spinach Garden", "fv", 82),
    CatalogProduct("SF02", "Kale Kick", "fv", 84),
    CatalogProduct("SF03", "Beetroot Berry", "fv", 92),
    CatalogProduct("SF04", "Avocado Cloud", "fv", 94),
    CatalogProduct("SF05", "Acai Forest", "f", 104),
    CatalogProduct("SF06", "Carrot Ginger", "fv", 112),
    CatalogProduct("SF07", "Pomegranate Chia", "f", 122),
    CatalogProduct("SC01", "Espresso Almond", "nc", 137),
    CatalogProduct("SC02", "Matcha Power", "c", 140),
    CatalogProduct("SC03", "Peanut Protein", "fn", 143),
    CatalogProduct("SC04", "Green Tea Charge", "fvc", 152),
    CatalogProduct("SC05", "Guarana Berry", "fc", 164),
    CatalogProduct("IS01", "Chocolate Hazelnut", "n", 168),
    CatalogProduct("IS02", "Caramel Coffee", "c", 180),
    CatalogProduct("IS03", "Coconut Dream", "fn", 192),
    CatalogProduct("IS04", "Cookie Cream", "", 200),
)
"""All of them 24 oz., in the order of their propensity. The items and what they contain are of this
example.
"""

SIZE = "24 oz."

_PROPENSITIES = [product.propensity_to_buy for product in PRODUCTS]


def chosen(draw: int) -> CatalogProduct:
    """The product whose propensity is nearest to a draw; of two equally near ones the lower."""
    above = bisect_left(_PROPENSITIES, draw)
    if above == 0:
        return PRODUCTS[0]
    if above == len(PRODUCTS):
        return PRODUCTS[-1]
    nearer_below = draw - _PROPENSITIES[above - 1] <= _PROPENSITIES[above] - draw
    return PRODUCTS[above - 1 if nearer_below else above]
