"""Which relay and which of its tables a repair means."""

import pytest

from bwtui.cli.auditing import target
from bwtui.errors import RefusedError
from bwtui.settings import RelaySettings

_OWN = RelaySettings(slot="shop", topic_prefix="shop")


@pytest.mark.parametrize(
    ("patterns", "meant"),
    [
        ((), ("public\\.a", "sales\\.b")),
        (("a",), ("public\\.a",)),
        ((r"public\.a",), ("public\\.a",)),
        ((r"sales\..*", "other"), ("sales\\.b",)),
        (("b",), ("(?!)",)),
    ],
)
def test_of_a_report_only_the_tables_that_are_chosen_are_meant(
    patterns: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    assert target._of_report({"tables": ["public.a", "sales.b"]}, patterns) == meant


def test_what_the_relay_has_otherwise_is_refused() -> None:
    for same in (RelaySettings(), RelaySettings(topic_prefix="shop", publication="bwtui_shop")):
        target._refuse_others("shop", same, _OWN)
    with pytest.raises(RefusedError, match=r"another -p/--topic-prefix .*: shop, not other"):
        target._refuse_others("shop", RelaySettings(topic_prefix="other"), _OWN)
    with pytest.raises(RefusedError, match=r"another --publication .*: bwtui_shop, not mine"):
        target._refuse_others("shop", RelaySettings(publication="mine"), _OWN)
