"""One message when something begins, one when it is over; a target that is down gets them later, in order."""

import json
import re
import smtplib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import psutil
import pytest

from lakehouse.errors import LakehouseError
from lakehouse.metrics import REGISTRY
from lakehouse.migrations import ensure_state
from lakehouse.servers.database import connect_catalog
from lakehouse.settings import AlertSettings, MailSettings, Settings, connected_now, load_settings
from lakehouse_watch import asking, store
from lakehouse_watch.alerts import CALM, MENDED, Message, Occasion, State, advance
from lakehouse_watch.probes import dagster_state
from lakehouse_watch.probes.messages import SENT_SECONDS, WAITS_SECONDS, read_messages
from lakehouse_watch.probes.reading import Probe, Reading
from lakehouse_watch.probes.said import without_values
from lakehouse_watch.targets.delivery import FIRST_PAUSE, LONGEST_PAUSE, TOLD_SECONDS, Delivery, declared_targets
from lakehouse_watch.targets.text import LONGEST, SHORTEST, full_text, hider
from lakehouse_watch.watch import Watch, declared_probes, new_watch
from orchestration.runs.failures import database_message
from tests.listeners import mailbox, webhook

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
PARKED = Occasion("parked/shop.orders", "shop.orders is parked: too wide", "resume it", source="shop")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def look(state: State, seconds: float, *found: Occasion, probe: str = "source shop") -> State:
    return advance(state, {probe: found}, ["mail", "webhook"], at(seconds))


def told(state: State, target: str = "webhook") -> list[tuple[str, str]]:
    return [(message.body["key"], message.body["state"]) for message in state.outbox if message.target == target]


def test_an_occasion_is_told_once_and_its_end_once() -> None:
    state = look(State(), 0, PARKED)
    for seconds in (15, 30, 45):
        state = look(state, seconds, PARKED)
    assert told(state) == told(state, "mail") == [("parked/shop.orders", "began")]
    for seconds in (60, 75, 90, 105):
        state = look(state, seconds)
    assert told(state) == [("parked/shop.orders", "began"), ("parked/shop.orders", "over")] and not state.alerts


def test_what_comes_and_goes_within_the_calm_is_one_occasion() -> None:
    state = State()
    for seconds in range(0, 300, 15):
        state = look(state, seconds, *([PARKED] if seconds % 30 == 0 else []))
    assert told(state) == [("parked/shop.orders", "began")]


def test_a_warning_that_becomes_an_error_is_told_again_and_once() -> None:
    """A check that blocks marts was not told of a table that had a warning open for weeks."""
    warning = replace(PARKED, severity="warning", patience=10.0)
    state = look(look(State(), 0, warning), 15, warning)
    assert told(state) == [("parked/shop.orders", "began")] and state.outbox[0].body["severity"] == "warning"
    for seconds, occasion in ((30, PARKED), (45, warning), (60, PARKED)):
        state = look(state, seconds, occasion)
    assert told(state) == [("parked/shop.orders", "began")] * 2 and state.outbox[-1].body["severity"] == "error"
    assert len({message.id for message in state.outbox}) == len(state.outbox) == 4
    state = look(look(state, 75), 120)
    assert told(state)[2:] == [("parked/shop.orders", "over")]


def test_an_occasion_that_ends_within_its_patience_is_not_told() -> None:
    restarting = replace(PARKED, patience=20)
    state = look(look(look(State(), 0, restarting), 15, restarting), 30)
    assert not state.outbox and not state.alerts
    state = look(look(State(), 0, restarting), 20, restarting)
    assert told(state) == [("parked/shop.orders", "began")]


def test_a_clock_that_is_set_back_delays_neither_the_begin_of_an_alert_nor_its_end() -> None:
    """It was waited for until the clock had come to where it had been."""
    patient = replace(PARKED, patience=20)
    state = look(State(), 7200, patient)
    for seconds in (0, 15, 30):
        state = look(state, seconds, patient)
    assert told(state) == [("parked/shop.orders", "began")]
    state = look(state, 7200)
    for seconds in (60, 75, 90):
        state = look(state, seconds)
    assert told(state)[1:] == [("parked/shop.orders", "over")]


def test_a_probe_that_cannot_tell_ends_nothing() -> None:
    """When the source was down, its parked tables were not over."""
    state = look(State(), 0, PARKED)
    for seconds in range(15, 600, 15):
        state = advance(state, {"source shop": None}, ["webhook"], at(seconds))
    assert told(state) == [("parked/shop.orders", "began")] and state.alerts


@pytest.mark.parametrize(
    ("unknown", "left"),
    [
        ("mirrors/shop", {"mirrors/shop", "mirrors/shop.orders"}),
        ("mirrors/", {"mirrors/shop", "mirrors/shop.orders", "mirrors/shop2", "mirrors/shop2.orders"}),
        ("code/project", {"code/project"}),
    ],
)
def test_what_a_probe_cannot_tell_of_a_source_leaves_the_alerts_of_another_whose_name_begins_so(
    unknown: str, left: set[str]
) -> None:
    """While the follower of `shop` was dead, no alert of the mirrors of `shop2` was ever over."""
    keys = ("mirrors/shop", "mirrors/shop.orders", "mirrors/shop2", "mirrors/shop2.orders", "code/project")
    state = look(State(), 0, *(replace(PARKED, key=key) for key in keys))
    for seconds in (15, 15 + CALM.total_seconds()):
        state = advance(state, {"source shop": []}, ["webhook"], at(seconds), (unknown,))
    assert state.alerts.keys() == left


def test_a_source_that_is_watched_no_more_has_no_open_alerts() -> None:
    state = look(State(), 0, PARKED)
    for seconds in (15, 15 + CALM.total_seconds()):
        state = advance(state, {}, ["webhook"], at(seconds))
    assert not state.alerts
    assert [m.body["summary"] for m in state.outbox if m.target == "webhook" and m.body["state"] == "over"] == [
        "not watched any more: shop.orders is parked: too wide"
    ], "a watch that was started without Dagster's database told that failed runs were mended"


def test_an_event_has_no_end_to_tell() -> None:
    changed = replace(PARKED, key="schema/shop.orders/x", ends=False)
    state = look(look(look(State(), 0, changed), 15), 60)
    assert told(state) == [("schema/shop.orders/x", "began")] and not state.alerts


def test_a_webhook_gets_text_for_people_and_keys_for_programs() -> None:
    with webhook() as hook:
        targets = declared_targets(AlertSettings(webhook=hook.url))
        left = Delivery(targets).deliver(look(State(), 0, PARKED).outbox, 0)
    assert left == ()
    [posted] = hook.posted
    assert posted["text"].splitlines()[:2] == ["[error] shop.orders is parked: too wide", "resume it"]
    assert (posted["state"], posted["kind"], posted["source"]) == ("began", "parked", "shop")


def test_mail_is_sent_by_smtp() -> None:
    with mailbox() as box:
        settings = MailSettings(
            host="127.0.0.1",
            port=box.port,
            tls="none",
            sender="lake@example.org",
            to=("a@example.org", "b@example.org"),
        )
        Delivery(declared_targets(AlertSettings(mail=settings))).deliver(look(State(), 0, PARKED).outbox, 0)
        Delivery(declared_targets(AlertSettings(mail=settings))).deliver(
            look(State(), 0, replace(PARKED, summary="Öl → Ärger")).outbox, 0
        )
    first, second = box.mails
    assert first["Subject"] == "lakehouse [error] shop.orders is parked: too wide"
    assert first["To"] == "a@example.org, b@example.org" and "resume it" in str(first.get_payload())
    body = second.get_payload(decode=True)
    assert isinstance(body, bytes) and "Öl → Ärger" in body.decode()


def test_a_password_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ValueError, match="tls"):
        MailSettings(host="h", tls="none", user="u", password="p", sender="a@b.de", to=("a@b.de",))


def test_what_comes_under_an_open_alert_is_told_once_and_what_fails_at_once_together() -> None:
    """With one check of a table red since yesterday, nobody heard of the next."""

    def failed(*names: str) -> Occasion:
        return Occasion("check/vault.hub_store", f"failed: {', '.join(names)}", "see", parts=names)

    def told(state: State) -> list[tuple[str, str]]:
        return [(m.body["state"], m.body["summary"]) for m in state.outbox if m.target == "webhook"]

    state = look(look(State(), 0, failed("unique", "not_null")), 15, failed("unique", "not_null"))
    assert told(state) == [("began", "failed: unique, not_null")]
    state = look(state, 30, failed("unique", "not_null", "hub_is_sound"))
    state = look(state, 45, failed("unique"))
    state = look(state, 60, failed("unique", "hub_is_sound"))
    assert told(state)[1:] == [("began", "failed: unique, not_null, hub_is_sound")], (
        "nor is one told that comes and goes"
    )
    state = look(state, 75, failed("unique", "accepted_values"))
    state = look(look(state, 90), 150)
    assert [what for what, _ in told(state)] == ["began", "began", "began", "over"]
    assert len({message.id for message in state.outbox}) == len(state.outbox)


@pytest.mark.parametrize("again", ["another part", "the error"])
def test_what_fails_again_under_an_open_alert_long_after_it_was_mended_is_told_again(again: str) -> None:
    """With a warning of the table open since the first day, nobody heard that its rows differed once more."""
    open_one = Occasion("check/raw_shop.orders", "a column is new", "see", "warning", parts=("columns",))
    parts = ("columns", "reconciles") if again == "another part" else ("columns",)
    worse = replace(open_one, severity="warning" if again == "another part" else "error", parts=parts)
    state, day = look(State(), 0, open_one), 86_400.0
    for seconds, occasion, count in (
        (day, worse, 2), (day + 15, open_one, 2), (day + 30, worse, 2), (2 * day, open_one, 2),
        (2 * day + MENDED.total_seconds() - 15, worse, 2), (3 * day, open_one, 2),
        (3 * day + MENDED.total_seconds(), open_one, 2), (20 * day, worse, 3),
    ):  # fmt: skip
        state = look(state, seconds, occasion)
        assert len(told(state)) == count, seconds
    assert len({message.id for message in state.outbox}) == len(state.outbox)


def test_parts_that_come_before_an_alert_is_told_are_in_its_first_message() -> None:
    slow = Occasion("run/load", "one", "see", patience=20, parts=("vault.a",))
    state = look(State(), 0, slow)
    state = look(look(state, 10, replace(slow, parts=("vault.a", "vault.b"))), 30, replace(slow, parts=("vault.b",)))
    assert len(told(state)) == 1


@pytest.mark.parametrize("left", [[("parsed.a",), ()], [(), ("parsed.a",)]], ids=["a table first", "all of it first"])
def test_a_load_that_fails_in_part_and_as_a_whole_is_told_once_of_each(
    left: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to and fro between both, and is over once it is sound, which a part that works again does not make it."""

    def failed(number: int, left: tuple[str, ...]) -> Occasion:
        run = dagster_state.Run(number, "load_shop", f"run-{number}", False, None, None, left)
        monkeypatch.setattr(dagster_state, "_known_errors", {run.run_id: f"cause {number}"})
        return dagster_state._run_failed(run, cast(Any, None), load_settings())

    def said(state: State) -> list[tuple[str, str]]:
        found = [m.body for m in state.outbox if m.target == "webhook"]
        return [(body["state"], body["summary"].rpartition(": ")[2]) for body in found]

    state = State()
    for number, parts in enumerate([*left, *left, ("parsed.a",)]):
        state = look(look(state, 100 * number, failed(number, parts)), 100 * number + 50, failed(number, parts))
    assert said(state) == [("began", "cause 0"), ("began", "cause 1")]
    state = look(state, 600, failed(6, ("parsed.b",)))
    assert said(state)[2:] == [("began", "cause 6")], "another table"
    state = look(look(state, 615), 650)
    assert said(state)[3:] == [("over", "cause 6")] and not state.alerts
    assert len({message.id for message in state.outbox}) == len(state.outbox)
    assert said(look(state, 900, failed(9, left[0])))[4:] == [("began", "cause 9")]


@pytest.mark.parametrize("target", ["webhook", "mail"])
def test_a_message_that_a_target_refuses_for_ever_holds_up_no_other(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter took the text for spam: whoever reads mail heard nothing again, for weeks."""
    lag = Occasion("lag/shop", "shop is behind", "see")
    with webhook() as hook, mailbox() as box:
        mail = MailSettings(host="127.0.0.1", port=box.port, tls="none", sender="l@example.org", to=("a@b.org",))
        delivery = Delivery(declared_targets(AlertSettings(webhook=hook.url, mail=mail)))
        hook.unwanted = box.unwanted = "too wide"
        outbox = tuple(m for m in look(State(), 0, PARKED).outbox if m.target == target)
        for now in (0, 100, 200, 300, 400, 500, 600):
            outbox = delivery.deliver(outbox, now)
            assert len(outbox) == 1, "it may be the settings, which somebody will correct"
        outbox += tuple(m for m in look(State(), 600, lag).outbox if m.target == target)
        assert delivery.deliver(outbox, 2000) == ()
        assert [box.mails, hook.posted][target == "webhook"] and len(box.mails) + len(hook.posted) == 1
    [occasion] = delivery.refused(2001)
    assert occasion.key == f"undelivered/{target}" and "parked/shop.orders (began) was refused" in occasion.summary
    assert "too wide" not in occasion.summary and "has not got a message" in caplog.text
    assert f'lakehouse_refused_messages_total{{target="{target}"}}' in REGISTRY.render()
    assert delivery.refused(2001 + TOLD_SECONDS) == []


@pytest.mark.parametrize("status", [503, 401])
def test_while_a_target_takes_nothing_nothing_is_set_aside(status: int) -> None:
    """Its URL is wrong, or it is down: all comes once that is mended, in order."""
    with webhook() as hook:
        delivery = Delivery(declared_targets(AlertSettings(webhook=hook.url)))
        hook.status = status
        state = look(look(look(State(), 0, PARKED), 15), 60)
        outbox = tuple(m for m in state.outbox if m.target == "webhook")
        for now in range(0, 50_000, 1000):
            assert delivery.deliver(outbox, now) == outbox
        hook.status = 200
        assert delivery.deliver(outbox, 60_000) == () and not delivery.refused(60_000)
    assert [posted["state"] for posted in hook.posted] == ["began", "over"]


def test_a_recipient_whom_the_server_refuses_is_told_of_and_the_others_get_the_mail() -> None:
    """smtplib says so only where none is taken: one who had left was on call, and nobody knew."""
    with mailbox() as box:
        box.unknown = "gone@b.org"
        to = ("a@b.org", "gone@b.org")
        mail = MailSettings(host="127.0.0.1", port=box.port, tls="none", sender="l@example.org", to=to)
        delivery = Delivery(declared_targets(AlertSettings(mail=mail)))
        outbox = tuple(m for m in look(State(), 0, PARKED).outbox if m.target == "mail")
        assert delivery.deliver(outbox, 0) == () and len(box.mails) == 1
    [occasion] = delivery.refused(1)
    assert occasion.summary == "mail did not take a message: gone@b.org: 550"


def test_a_target_that_is_down_gets_everything_later_in_order_and_holds_up_no_other() -> None:
    with webhook() as hook, mailbox() as box:
        mail = MailSettings(host="127.0.0.1", port=box.port, tls="none", sender="l@example.org", to=("a@b.org",))
        delivery = Delivery(declared_targets(AlertSettings(webhook=hook.url, mail=mail)))
        hook.status = 503
        state = look(State(), 0, PARKED)
        left = delivery.deliver(state.outbox, 0)
        state = look(look(replace(state, outbox=left), 15), 60)
        left, posts = delivery.deliver(state.outbox, 1), len(hook.text)
        assert len(box.mails) == 2 and [message.target for message in left] == ["webhook", "webhook"]
        assert len(hook.text) == posts, "the next try is not due"
        hook.status = 200
        assert delivery.deliver(left, FIRST_PAUSE + 1) == ()
    assert [posted["state"] for posted in hook.posted] == ["began", "over"]


def test_tries_are_further_and_further_apart_and_never_end() -> None:
    tries = []

    def refuse(_: object) -> None:
        raise LakehouseError("not now")

    delivery, outbox = Delivery({"webhook": refuse}), look(State(), 0, PARKED).outbox[1:]
    for second in range(0, 7200, 5):
        before = dict(delivery._pauses)
        assert delivery.deliver(outbox, second) == outbox
        tries += [second] if delivery._pauses != before else []
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps[:4] == [10, 20, 40, 80] and max(gaps) == gaps[-1] == LONGEST_PAUSE


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_answers_otherwise_has_taken_nothing_and_its_url_is_not_told(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook() as hook:
        hook.status = status
        delivery = Delivery(declared_targets(AlertSettings(webhook=hook.url)))
        assert len(delivery.deliver(look(State(), 0, PARKED).outbox[1:], 0)) == 1
    assert str(status) in caplog.text and "hunter2" not in caplog.text and not hook.posted


NO_HTTP = {
    "a banner": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a long header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_webhook_does_not_end_the_watch(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It raised what was no OSError, and nobody was told anything from then on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_answer, args=(server, answer), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/hunter2"
        delivery = Delivery(declared_targets(AlertSettings(webhook=url)))
        assert len(delivery.deliver(look(State(), 0, PARKED).outbox[1:], 0)) == 1
    assert "webhook did not take" in caplog.text and "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/hunter 2", "http://127.0.0.1:hunter2/", "http://käse..de/", "hunter2"]
)
def test_an_address_that_is_none_does_not_end_the_watch(url: str, caplog: pytest.LogCaptureFixture) -> None:
    delivery = Delivery(declared_targets(AlertSettings(webhook=url)))
    assert len(delivery.deliver(look(State(), 0, PARKED).outbox[1:], 0)) == 1
    assert "webhook did not take" in caplog.text and "hunter" not in caplog.text


def test_a_webhook_has_taken_a_message_once_it_says_so_however_slow_the_rest_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
        Thread(target=_answer, args=(server, head, 60.0), daemon=True).start()
        delivery = Delivery(declared_targets(AlertSettings(webhook=f"http://127.0.0.1:{server.getsockname()[1]}/")))
        begun = time.monotonic()
        assert delivery.deliver(look(State(), 0, PARKED).outbox[1:], 0) == ()
        assert time.monotonic() - begun < 5


def _answer(server: socket.socket, answer: bytes, seconds: float = 0.0) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answer)
        time.sleep(seconds)


@pytest.mark.parametrize("wrong", [{"to": ["a@b.org\nBcc: c@d.org"]}, {"to": ["jürgen@käse.de"]}, {"host": "käse..de"}])
def test_a_mail_that_cannot_be_sent_does_not_end_the_watch(
    wrong: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with mailbox() as box:
        given = {"host": "127.0.0.1", "port": box.port, "tls": "none", "sender": "l@b.org", "to": ["a@b.org"], **wrong}
        delivery = Delivery(declared_targets(AlertSettings(mail=MailSettings.model_validate(given))))
        assert len(delivery.deliver(look(State(), 0, PARKED).outbox[:1], 0)) == 1
    assert "did not take a mail" in caplog.text


def test_a_password_that_smtplib_cannot_send_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = smtplib.SMTP
    monkeypatch.setattr(plain, "starttls", lambda self, context: None)
    monkeypatch.setattr(plain, "has_extn", lambda self, name: name == "auth")
    monkeypatch.setattr(plain, "ehlo_or_helo_if_needed", lambda self: self.esmtp_features.update(auth="PLAIN"))
    with mailbox() as box:
        given = {"host": "127.0.0.1", "port": box.port, "sender": "l@b.org", "to": ["a@b.org"], "user": "u"}
        mail = MailSettings.model_validate({**given, "password": "pä"})
        delivery = Delivery(declared_targets(AlertSettings(mail=mail)))
        assert len(delivery.deliver(look(State(), 0, PARKED).outbox[:1], 0)) == 1
    assert "have to be ASCII" in caplog.text and "xe4" not in caplog.text


def test_no_secret_is_in_a_message() -> None:
    settings = load_settings(
        catalog_url="postgresql://me:p%40ss-of-catalog@db/lake",
        sources={"shop": {"url": "host=db user=me password=secret-of-shop dbname=shop"}},
        s3={"access_key": "AKIA-key", "secret_key": "secret-of-s3"},
        alerts={"webhook": "https://hooks.example.org/T0/B0/hunter2"},
        spark={"conf": {"spark.hadoop.fs.s3a.secret.key": "secret-of-spark"}},
    )
    text = (
        "p@ss-of-catalog p%40ss-of-catalog secret-of-shop AKIA-key secret-of-s3 secret-of-spark\n"
        "https://hooks.example.org/T0/B0/hunter2 postgresql://me:p%40ss-of-catalog@db/lake \x1b[31mred"
    )
    hidden = hider(settings)(text)
    assert not [secret for secret in ("ss-of", "secret-of", "AKIA", "hunter2", "\x1b", "\n") if secret in hidden]
    assert "red" in hidden


@pytest.mark.parametrize("secret", ["p@ss-of-catalog", "secret-of-spark", "a-key of several\nlines"])
def test_no_secret_is_in_a_message_that_was_cut_within_it(secret: str) -> None:
    """The end of an error is cut where it is stored, in another process; what was left of a password was sent."""
    settings = load_settings(
        catalog_url="postgresql://me:p%40ss-of-catalog@db/lake",
        spark={"conf": {"spark.a.secret": "secret-of-spark", "spark.b.secret": "a-key of several\nlines"}},
    )
    hide = hider(settings)
    for before in range(300 - len(secret), 300):
        cut = dagster_state._one_line(f"{'x' * (before - 1)} {secret} and more")
        assert secret[:SHORTEST] not in hide(f"it has failed: {cut}; see its page")
    filled = "y" * (LONGEST - 8)
    assert secret[:SHORTEST] not in hide(f"{filled} {secret}")
    assert hide(f"{'x' * 400} se…") == f"{'x' * 400} se…", "no more of it than of many words"


def test_whatever_is_cut_is_marked_as_cut() -> None:
    """Else the beginning of a secret at its end is not known for one."""
    packages = ("lakehouse*", "ingestion", "orchestration", "maintenance", "erasure")
    files = [file for package in packages for folder in ROOT.glob(package) for file in folder.rglob("*.py")]
    cutting = re.compile(r"\)\[: ?(?:[0-9]{3,}|LONGEST|ERROR_LENGTH)\]")
    assert files and not [file for file in files if cutting.search(file.read_text())]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "vault.sat_staff (dbt_project/models/x.sql): Value cannot be cast to date: 4711 Ada "
            "(INVALID_CAST_ARGUMENT, query 20261129_1_2_abc)",
            "vault.sat_staff (dbt_project/models/x.sql): INVALID_CAST_ARGUMENT, query 20261129_1_2_abc",
        ),
        (
            "test unique of vault.hub_store.hk: Cannot cast 'a: b' to int (INVALID_CAST_ARGUMENT, query q1)",
            "test unique of vault.hub_store.hk: INVALID_CAST_ARGUMENT, query q1",
        ),
        (
            'TrinoUserError(type=USER_ERROR, name=DIVISION_BY_ZERO, message="a (b) 4711", query_id=20261129_1)',
            "DIVISION_BY_ZERO, query_id=20261129_1",
        ),
        (
            'TrinoUserError: TrinoUserError(type=USER_ERROR, name=GENERIC_USER_ERROR, message="47…',
            "TrinoUserError: GENERIC_USER_ERROR",
        ),
        ("[CAST_INVALID_INPUT] The value '4711' of the type", "[CAST_INVALID_INPUT]"),
        ("1 value: status='lost' in 3 rows", "1 value"),
        ("1,011 rows", "1,011 rows"),
        ("[Errno 28] No space left on device", "[Errno 28] No space left on device"),
        ("Trino at x does not answer (it is starting)", "Trino at x does not answer (it is starting)"),
    ],
)
def test_no_value_of_a_row_is_in_an_alert(said: str, told: str) -> None:
    """Slack was told the keys of a batch that was refused, and the text that could not be cast."""
    assert without_values(said) == told


def test_what_dbt_says_of_a_batch_goes_to_the_page_of_the_run_alone() -> None:
    keys = "no new row gets into vault.hub_staff, because one has hk twice: " + "4711, " * 200
    error = f'TrinoUserError(type=USER_ERROR, name=GENERIC_USER_ERROR, message="{keys}", query_id=20261129_1_2_abc)'
    said = f"vault.hub_staff: {database_message(error)}"
    assert "4711" in said
    event = {"dagster_event": {"event_specific_data": {"user_failure_data": {"description": f"{said}\ndbt: 1 failed"}}}}
    assert dagster_state._cause(json.dumps(event)) == (
        "vault.hub_staff: GENERIC_USER_ERROR, query 20261129_1_2_abc; dbt: 1 failed"
    )


def test_a_password_that_is_a_word_leaves_names_and_commands_whole() -> None:
    """With the password `lake`, people were told to run `***house sql`."""
    hidden = hider(load_settings(catalog_url="postgresql://me:lake@db/catalog"))
    assert hidden("`lakehouse sql`: postgresql://me:lake@db password=lake 'lake' lake_reader") == (
        "`lakehouse sql`: postgresql://me:***@db password=*** '***' lake_reader"
    )


def test_the_end_says_since_when_it_was_and_no_remedy() -> None:
    """Programs were told to resume a table that had been resumed."""
    state = look(look(look(State(), 0, PARKED), 15), 60)
    assert [message.body["to_do"] for message in state.outbox if message.target == "mail"] == ["resume it", ""]
    assert full_text(state.outbox[-1].body).startswith("[over] shop.orders is parked: too wide\nsince 2026-05-04T12:00")


@pytest.fixture(scope="module")
def settings(cluster: str) -> Settings:
    return load_settings(catalog_url=cluster)


@pytest.fixture
def lake(settings: Settings) -> Settings:
    with connect_catalog(settings) as connection:
        ensure_state(connection)
        connection.execute("TRUNCATE lakehouse.alerts, lakehouse.messages")
    return settings


class World:
    """What the only probe finds."""

    def __init__(self, *found: Occasion) -> None:
        self.found = found

    def watch(self, settings: Settings, url: str | None) -> Watch:
        probe = Probe("source shop", lambda: Reading(self.found), source="shop", needs_catalog=True)
        return Watch(settings, [probe], Delivery(declared_targets(AlertSettings(webhook=url))), hider(settings))


def end(watch: Watch, lake: Settings) -> None:
    """Ends its session, and waits until the database has noticed: the next one looks at once."""
    watch._disconnect()
    deadline = time.monotonic() + 20
    with connect_catalog(lake) as connection:
        while connection.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchone() is not None:
            assert time.monotonic() < deadline, "the lock outlived its session"
            time.sleep(0.02)


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """A server's process that is there and does not answer."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def test_a_source_that_is_connected_later_is_watched_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))  # not that of a demo that was run here
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(tmp_path / "lakehouse.toml"))
    (tmp_path / "lakehouse.toml").write_text("")
    this = new_watch(load_settings(home=tmp_path))
    this.readings = {"source shop": None, "disk": Reading()}
    (tmp_path / "lakehouse.toml").write_text('[sources.bank]\nurl = "postgresql://reader:s3cret@db/bank"\n')
    (tmp_path / "lakehouse.toml").chmod(0o600)
    this.connect(connected_now(this.settings))
    assert [probe.source for probe in this.probes if probe.source] == ["bank"]
    assert list(this.readings) == ["disk"], "what is connected no more is told no more"
    assert "s3cret" not in this.hide("no answer from postgresql://reader:s3cret@db/bank")
    (tmp_path / "lakehouse.toml").write_text("[sources.bank")
    assert connected_now(this.settings) == this.settings, "it is being written"


def test_what_is_stored_is_read_again(lake: Settings) -> None:
    state = look(look(State(), 0, PARKED, replace(PARKED, key="b/c", ends=False)), 15, PARKED)
    with connect_catalog(lake) as connection:
        store.save(connection, State(), state)
        assert store.load(connection) == state
        milder = look(state, 20, replace(PARKED, severity="warning"))
        store.save(connection, state, milder)
        assert milder.alerts[PARKED.key].absent and store.load(connection) == milder
        store.save(connection, milder, state)
        connection.execute(
            "UPDATE lakehouse.alerts SET alert = alert - 'told_worst' - 'told_parts' - 'absent' #- '{occasion,parts}'"
        )
        assert store.load(connection) == state, "as an earlier release has stored them"
        later = replace(look(state, 60), outbox=state.outbox[1:])
        store.save(connection, state, later)
        assert store.load(connection) == later


def test_a_watch_that_is_restarted_tells_nothing_twice_and_forgets_nothing(lake: Settings) -> None:
    world = World(PARKED)
    with webhook() as hook:
        hook.status = 500
        first = world.watch(lake, hook.url)
        first.look()
        end(first, lake)  # killed, while the target was down
        hook.status = 200
        second = world.watch(lake, hook.url)
        second.look()
        second.look()
        assert [posted["state"] for posted in hook.posted] == ["began"]
        end(second, lake)
        third = world.watch(lake, hook.url)
        third.look()
        end(third, lake)
        assert len(hook.posted) == 1


def test_a_target_that_is_down_for_long_is_told_through_the_other_and_on_the_page(
    lake: Settings,
) -> None:
    """The webhook was revoked, and whoever read nothing else heard of nothing for days."""

    def found() -> list[str]:
        return [occasion.summary for occasion in read_messages(lake).occasions]

    earlier = datetime.now(UTC) - timedelta(seconds=WAITS_SECONDS)
    state = advance(State(), {"source shop": [PARKED]}, ["mail", "webhook"], earlier + timedelta(seconds=30))
    with connect_catalog(lake) as connection:
        store.save(connection, State(), state)
        assert found() == []
        state = advance(state, {"x": [replace(PARKED, key="a/b")]}, ["webhook"], earlier - timedelta(seconds=50))
        store.save(connection, State(), state)
    assert found() == ["webhook has taken no message for 31 minutes: 2 wait"]
    probes = {probe.name: probe for probe in declared_probes(lake)}
    [waiting] = probes["messages"].read().occasions
    assert waiting.key == "undelivered/webhook/waiting"
    assert waiting.patience == SENT_SECONDS, "a watch that was down looks before it sends"


def test_of_two_watches_one_tells_and_the_other_takes_over(lake: Settings) -> None:
    world = World(PARKED)
    with webhook() as hook:
        first, second = world.watch(lake, hook.url), world.watch(lake, hook.url)
        for _ in range(2):
            first.look()
            second.look()
        assert len(hook.posted) == 1
        end(first, lake)
        world.found = (PARKED, replace(PARKED, key="parked/shop.sales"))
        second.look()
        end(second, lake)
        assert [posted["key"] for posted in hook.posted] == ["parked/shop.orders", "parked/shop.sales"]


@pytest.mark.parametrize("when", ["between two looks", "during one"])
def test_a_watch_whose_session_was_cut_tells_nothing_that_the_next_one_has_told(lake: Settings, when: str) -> None:
    """It was suspended, another one took over, and it told its own alerts and messages of before again."""
    world = World(PARKED)
    with webhook() as hook:
        hook.status = 500
        first, second = world.watch(lake, hook.url), world.watch(lake, hook.url)
        first.look()
        hook.status = 200

        def take_over() -> Reading:
            first.probes = world.watch(lake, hook.url).probes
            assert first.connection is not None
            with connect_catalog(lake) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 20000)", (first.connection.info.backend_pid,))
            second.look()
            return Reading(world.found)

        if when == "during one":
            first.probes, first.readings = [replace(first.probes[0], read=take_over)], {}
        else:
            take_over()
        first.delivery = Delivery(first.delivery.targets)  # after so long no target waits to be tried again
        first.look()
        assert [posted["key"] for posted in hook.posted] == ["parked/shop.orders"]
        assert first.state == State() and first.connection is None
        end(second, lake)


def test_a_watch_that_stands_by_has_no_alerts_of_its_own(lake: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It exported what it had found while the catalog was down, and told the end of it when it took over."""
    monkeypatch.setattr("lakehouse_watch.watch.UNREADABLE_SECONDS", 0.0)
    monkeypatch.setattr("lakehouse_watch.alerts.CALM", timedelta(0))
    world = World(PARKED)
    with webhook() as hook:
        first, second = world.watch(lake, hook.url), world.watch(lake, hook.url)
        first.look()
        second.settings = load_settings(catalog_url="postgresql://nobody@127.0.0.1:1/none")
        second.look()
        assert set(second.state.alerts) == {"unreadable/catalog"}
        second.settings = lake
        second.look()
        assert second.state == State()
        end(first, lake)
        for _ in range(2):
            second.look()
        assert set(second.state.alerts) == {"parked/shop.orders"}
        first.look()
        assert first.state == State(), "nor has the one that the other has taken over from"
        end(second, lake)
        told = [(posted["key"], posted["state"]) for posted in hook.posted]
        assert told == [("parked/shop.orders", "began"), ("unreadable/catalog", "began")]


def test_it_is_told_that_the_catalog_is_down_and_nothing_else_is_over(
    lake: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own state is out of reach then; what it sent meanwhile is not sent again afterwards."""
    monkeypatch.setattr("lakehouse_watch.watch.UNREADABLE_SECONDS", 0.0)
    world = World(PARKED)
    with webhook() as hook:
        this = world.watch(lake, hook.url)
        this.look()
        end(this, lake)
        this.settings = load_settings(catalog_url="postgresql://nobody@127.0.0.1:1/none")
        for _ in range(3):
            this.look()
        assert [posted["key"] for posted in hook.posted] == ["parked/shop.orders", "unreadable/catalog"]
        this.settings = lake
        this.look()
        assert len(hook.posted) == 2
        with connect_catalog(lake) as connection:
            assert set(store.load(connection).alerts) == {"parked/shop.orders", "unreadable/catalog"}
        end(this, lake)


def test_while_the_catalog_is_down_what_could_not_be_read_before_is_not_over() -> None:
    """It was told that the lake and its sources can be read again, of which nothing was asked."""

    def fails() -> Reading:
        raise LakehouseError("no answer")

    lake, disk = Probe("lake", fails, needs_catalog=True), Probe("disk", Reading)
    this, state = Watch(load_settings(), [lake, disk], Delivery({}), str), State()
    for seconds in range(0, 120, 15):
        down = "it is down" if 30 < seconds < 105 else None
        state = advance(state, this._read(down), ["webhook"], at(seconds))
    assert told(state) == [("unreadable/lake", "began"), ("unreadable/catalog", "began")]
    this.probes = [replace(lake, read=Reading), disk]
    for seconds in (120, 150):
        state = advance(state, this._read(None), ["webhook"], at(seconds))
    assert not state.alerts and told(state)[2:] == [("unreadable/lake", "over"), ("unreadable/catalog", "over")]


def test_a_catalog_that_hangs_is_told_as_one_that_is_down(lake: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch hung with it, and told nobody of anything."""
    monkeypatch.setattr("lakehouse_watch.watch.UNREADABLE_SECONDS", 0.0)
    with webhook() as hook:
        this = World(PARKED).watch(lake, hook.url)
        this.look()
        assert this.connection is not None
        with stopped(psutil.Process(this.connection.info.backend_pid)), monkeypatch.context() as impatient:
            impatient.setattr(asking, "SOON", 0.5)
            for _ in range(3):
                this.look()
        assert [posted["key"] for posted in hook.posted] == ["parked/shop.orders", "unreadable/catalog"]
        until(lambda: not this._take_lock()[1])
        this.look()
        assert set(this.state.alerts) == {"parked/shop.orders", "unreadable/catalog"} and len(hook.posted) == 2
        with connect_catalog(lake) as connection:
            assert store.load(connection) == this.state
        end(this, lake)


def test_a_probe_that_hangs_holds_up_no_other(lake: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_watch.watch.UNREADABLE_SECONDS", 0.0)
    monkeypatch.setattr(asking, "SECONDS", 0.5)
    monkeypatch.setattr(asking, "LEAST", 0.5)
    asked, goes_on = list[str](), Event()

    def hang() -> Reading:
        asked.append("bank")
        goes_on.wait(20)
        return Reading()

    with webhook() as hook:
        this = World(PARKED).watch(lake, hook.url)
        this.probes = [Probe("source bank", hang, source="bank"), *this.probes]
        for _ in range(3):
            this.look()
        assert {posted["key"] for posted in hook.posted} == {"unreadable/source bank", "parked/shop.orders"}
        assert asked == ["bank"], "it is not asked again before it has answered"
        goes_on.set()
        until(lambda: this._read(None)["source bank"] == [])
        end(this, lake)


def test_messages_of_a_target_that_is_declared_no_more_are_dropped() -> None:
    assert Delivery({}).deliver((Message("1", "webhook", {}),), 0) == ()
