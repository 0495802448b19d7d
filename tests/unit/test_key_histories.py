"""The histories of key_histories.yml, through the macros of parsed and through the erasure of a subject."""

from erasure.key_periods import FIRST, NEVER, Event, Period, key_periods
from tests.key_histories import UNKNOWN, KeyHistory, RawEvent, each_history
from tests.unit.embedded_parsed import Parsed


@each_history
def test_parsed_fills_what_updates_left_out_however_the_loads_are_cut(history: KeyHistory) -> None:
    cuts = sorted({event.lsn for event in history.events})
    versions = [
        (event.lsn, event.seq, event.key, None if value == UNKNOWN else value)
        for event, value in zip(history.events, history.values, strict=True)
        if event.op != "t"
    ]
    for loads in ([cuts[-1]], cuts, *([first, cuts[-1]] for first in cuts[:-1])):
        parsed = loaded(history, loads)
        found = parsed.rows("select _commit_lsn, _seq, id, v from parsed where _op <> 't'")
        assert sorted(found) == sorted(versions), loads
        current = {key: None if value == UNKNOWN else value for key, value in history.current.items()}
        assert dict(parsed.current()) == current, loads


@each_history
def test_an_erasure_follows_a_subject_through_its_keys(history: KeyHistory) -> None:
    events = [lake_event(event) for event in history.events]
    for key, others in history.periods.items():
        expected = {Period((other,), start or FIRST, end or NEVER) for other, start, end in others}
        assert set(key_periods((key,), events)) == {Period((key,)), *expected}


def lake_event(event: RawEvent) -> Event:
    """As an erasure reads it."""
    key, old_key = (None if k is None else (k,) for k in (event.key, event.old_key))
    return Event(key, (1, event.lsn, event.seq), event.op, old_key, event.values.get("marker", False))


def loaded(history: KeyHistory, loads: list[int]) -> Parsed:
    """Parsed after loads that read up to these positions, each of what was published since the one before."""
    parsed, waiting = Parsed("v"), list(history.events)
    for minute, cut in enumerate(loads):
        while waiting and waiting[0].lsn <= cut:
            event = waiting.pop(0)
            moment = f"20 08:{minute:02}"
            parsed.land(event.op, event.key, event.lsn, moment, moment, _seq=event.seq, **event.row)
        parsed.load(cut)
    return parsed
