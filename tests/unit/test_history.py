"""What a slot's position and its newest transaction prove of the source's past."""

from datetime import UTC, datetime, timedelta

import pytest

from ingestion.sources.postgres.history.server import check_same_server
from ingestion.sources.postgres.history.signature import confirmed_below, is_signed, signed
from ingestion.sources.postgres.history.witness import Witness, proves, same_history
from lakehouse.errors import LakehouseError

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEPT = Witness(800, AT)


@pytest.mark.parametrize("lsn", [8, 24, 0x6000098, 0x7000000, (1 << 40) + 8, 9, 15])
def test_a_signed_position_confirms_every_record_below_and_no_other(lsn: int) -> None:
    starts = range(lsn // 8 * 8 - 16, lsn + 64, 8)  # where records may begin
    assert is_signed(signed(lsn))
    assert [start < signed(lsn) for start in starts] == [start < lsn for start in starts]
    assert [start < confirmed_below(signed(lsn)) for start in starts] == [start < lsn for start in starts]


def test_a_position_of_postgres_itself_is_not_signed_and_means_what_it_says() -> None:
    for lsn in (8, 0x6000098, 0x7000000):
        assert not is_signed(lsn)
        assert confirmed_below(lsn) == lsn


def test_a_slot_that_must_show_the_witness_proves_the_past_only_by_showing_it() -> None:
    assert proves(KEPT, 800) and proves(KEPT, 792)
    assert same_history(KEPT, Witness(800, AT), 800)
    assert not same_history(KEPT, None, 800)
    assert not same_history(KEPT, Witness(800, AT + timedelta(microseconds=1)), 800)
    assert not same_history(KEPT, Witness(808, AT), 800)


def test_a_slot_beyond_the_witness_proves_nothing_and_must_be_silent() -> None:
    assert not proves(KEPT, 808) and not proves(None, 808)
    assert same_history(KEPT, None, 808)
    assert not same_history(KEPT, Witness(816, AT), 808)


def test_another_server_than_the_checked_one_is_named_with_the_remedy() -> None:
    check_same_server("shop", 5, 5)
    with pytest.raises(LakehouseError, match=r"source .shop.: another server answered .* lead to the primary alone"):
        check_same_server("shop", 5, 6)
