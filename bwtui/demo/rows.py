"""Random but repeatable rows for the demo's shop.

The values are ordinary ones of the common types, mixed with those that break careless relays: empty strings
as well as NULL, text that looks like NULL, quotes, backslashes, line ends, every plane of Unicode, negative
and large numbers, the smallest and largest floats. NaN, infinity and years before Christ are not included:
tests of the types cover them.

Floats are passed to PostgreSQL as quoted text: it would parse a bare literal as numeric.
"""

import datetime
import json
import random
import uuid
from decimal import Decimal
from typing import Any, TypeVar

Row = tuple[Any, ...]
T = TypeVar("T")

#: Start of the shop's clock, which advances with its rows, so that the same seed gives the same rows.
_START = datetime.datetime(2026, 11, 1, 8, 0, tzinfo=datetime.UTC)

_GIVEN = ("Ada", "Björk", "Chloë", "Đorđe", "Émile", "Fatma", "Gülşen", "Håkon", "Ioánna", "Jürgen", "Łukasz")
_FAMILY = (
    "Ødegård",
    "O'Brien",
    "Müller-Lüdenscheidt",
    "Nguyễn",
    "Иванова",
    "田中",
    "김",
    "حداد",
    "לוי",
    "Ñandú",
)
# fmt: off
_WORDS = (
    "lamp", "kettle", "bicycle", "crème", "brûlée", "Straße", "naïve", "東京", "コーヒー", "Привет", "γάλα",
    "🚲", "👩‍🚀", "📦", "fragile", "gift", "quick", "slow", "blue", "green", "rouge", "gelb", "ivory",
    "copper", "wool", "oak", "100%", "½", "€", "£", "∑", "\U0001d11e", "ｆｕｌｌ",
)
# fmt: on
#: Texts that a careless parser of CSV, COPY, JSON or SQL misinterprets.
_ODD_TEXTS = (
    "",
    " ",
    "NULL",
    "\\N",
    "\\.",
    "null",
    "it''s \"quoted\"",
    "back\\slash",
    "two\nlines\r\n",
    "tab\there",
    '{"not": "json"}',
    "-- comment",
    "${x} %s {} \\u0000",
    "e\u0301 is not é",
    "\u202eright to left\u202c",
    "\U0010ffff\ue000\x01\x7f",
)
_ODD_FLOATS = (0.0, -0.0, 5e-324, -1.7976931348623157e308, 2.2250738585072014e-308, 0.1, 1e15, 123456789.125)
_ODD_REALS = (0.0, -0.0, 1.1754944e-38, -3.4028235e38, 1e-45, 0.1, 16777216.0)
_LARGE = (2**63 - 1, -(2**63), 2**53 + 1, -1, 0)
STATUSES = ("new", "paid", "packed", "sent", "delivered", "returned")
SITES = ("Hamburg", "Kraków", "Reykjavík", "São Paulo")
ACTIONS = ("login", "logout", "view", "search", "export", "refund", "price change")


class ShopRowMaker:
    """Makes the rows of all tables; the same seed gives the same rows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._clock = _START

    def now(self) -> datetime.datetime:
        """Return the shop's time, which advances with every call."""
        self._clock += datetime.timedelta(microseconds=self.random.randrange(1, 5_000_000))
        zone = datetime.timezone(datetime.timedelta(minutes=self.random.choice((-570, -300, 0, 60, 345))))
        return self._clock.astimezone(zone)

    def customer(self) -> Row:
        """Return a row of customers, without its id."""
        given_name, family_name = self.random.choice(_GIVEN), self.random.choice(_FAMILY)
        return (
            f"{given_name}.{self.random.getrandbits(40):x}@example.com".lower(),
            f"{given_name} {family_name}",
            self.text(),
            self.day(),
            self.money(-500, 5_000),
            self.chance(0.1),
            self.document(),
            self.uuid(),
            self.now(),
        )

    def product(self) -> Row:
        """Return a row of products, without its id."""
        return (
            f"SKU-{self.random.getrandbits(48):012X}",
            self.words(2, 4),
            self.maybe(self.words(5, 60), 0.8),
            self.money(0, 2_000),
            self.single(),
            self.double(),
            self.maybe(self.chance(0.9), 0.95),
            self.day(),
            self.document(),
            self.blob(48),
        )

    def order(self, customer: int) -> Row:
        """Return a row of orders, without its id."""
        placed = self.now()
        return (
            customer,
            self.uuid(),
            self.random.choice(STATUSES),
            self.money(1, 900),
            self.text(),
            self.maybe(self.chance(0.2), 0.9),
            placed,
            self.maybe((placed + datetime.timedelta(days=3)).replace(tzinfo=None), 0.8),
        )

    def item(self, order: int, line: int, product: int) -> Row:
        """Return a row of order_items."""
        return (
            order,
            line,
            product,
            self.random.randrange(1, 20),
            self.money(-20, 300),
            self.double(),
            self.maybe(self.text(), 0.3),
        )

    def audit(self, object_id: int | None) -> Row:
        """Return a row of audit."""
        return (
            self.now(),
            self.maybe(self.random.choice(_GIVEN), 0.9),
            self.random.choice(ACTIONS),
            object_id,
            self.document(),
            self.blob(20),
            self.single(),
        )

    def stock(self, product: int, site: str) -> Row:
        """Return a row of warehouse.stock."""
        counted = self.now().replace(tzinfo=None)
        return (site, self.quantity(), product, self.day(), self.text(), counted)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def maybe(self, value: T, probability: float) -> T | None:
        """Return the value with this probability, otherwise None."""
        return value if self.chance(probability) else None

    def text(self) -> str | None:
        """Return NULL, an odd text, or some words."""
        draw = self.random.random()
        if draw < 0.2:
            return None
        return self.random.choice(_ODD_TEXTS) if draw < 0.4 else self.words(1, 6)

    def words(self, least: int, most: int) -> str:
        """Return some words in many scripts."""
        return " ".join(self.random.choices(_WORDS, k=self.random.randint(least, most)))

    def money(self, low: int, high: int) -> Decimal:
        """Return an amount with two decimals, occasionally the largest or smallest in numeric(10,2), or 0."""
        if self.chance(0.02):
            return self.random.choice((Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("0.00")))
        return Decimal(self.random.randint(low * 100, high * 100)) / 100

    def quantity(self) -> int:
        """Return a bigint, occasionally one at the end of its range."""
        return self.random.choice(_LARGE) if self.chance(0.05) else self.random.randrange(-50, 10_000)

    def double(self) -> str | None:
        """Return a double precision number as text, or NULL."""
        draw = self.random.random()
        if draw < 0.1:
            return None
        return repr(self.random.choice(_ODD_FLOATS) if draw < 0.2 else self.random.uniform(-5, 5))

    def single(self) -> str | None:
        """Return a real number as text, or NULL."""
        draw = self.random.random()
        if draw < 0.1:
            return None
        return repr(self.random.choice(_ODD_REALS) if draw < 0.2 else self.random.uniform(0, 90))

    def day(self) -> datetime.date | None:
        """Return a date between 1930 and 2036, or NULL."""
        return self.maybe(datetime.date(1930, 1, 1) + datetime.timedelta(self.random.randrange(38_700)), 0.8)

    def uuid(self) -> str:
        """Return a random UUID as text."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def blob(self, most: int) -> bytes | None:
        """Return some bytes, an empty value, or NULL."""
        return self.maybe(self.random.randbytes(self.random.randint(0, most)), 0.85)

    def document(self) -> str | None:
        """Return a JSON document as text, or NULL."""
        if self.chance(0.15):
            return None
        value: dict[str, Any] = {
            "theme": self.random.choice(("dark", "light", None)),
            "tags": self.random.choices(_WORDS, k=self.random.randrange(3)),
            "ratio": self.random.choice((0.5, -1e-7, 1e21, 12345678901234567890, 0)),
            "deep": {"yes": self.chance(0.5), "empty": {}, "text": '\u20ac " \\ \n'},
        }
        return json.dumps(value, ensure_ascii=self.chance(0.5))
