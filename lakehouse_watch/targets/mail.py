"""Mail by SMTP."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any

from lakehouse.errors import LakehouseError
from lakehouse.settings import MailSettings
from lakehouse.text.shown import shortened
from lakehouse_watch.targets.refused import Refused
from lakehouse_watch.targets.text import full_text, headline

log = logging.getLogger("lakehouse.watch")
SECONDS = 20.0
NOT_ASCII = "host, user and password have to be ASCII"  # what Python says of them shows a letter of the password


def send(settings: MailSettings, body: Mapping[str, Any]) -> Sequence[str]:
    """Sends the message; returns which of several recipients the server has refused for good. Raises LakehouseError.

    By their status alone: a server's words may be others each time, and would be news each time.
    """
    try:
        with _connected(settings) as server:
            if settings.user is not None and settings.password is not None:
                server.login(settings.user, settings.password.get_secret_value())
            refused = server.send_message(_mail(settings, body)) or {}
            for to, (status, said) in sorted(refused.items()):
                log.warning("the mail server did not take a mail for %s: %s %s", to, status, _said(said))
            return [f"{to}: {status}" for to, (status, _) in sorted(refused.items()) if status >= 500]
    except (OSError, smtplib.SMTPException, ValueError) as error:  # also an address that is none
        reason = NOT_ASCII if isinstance(error, UnicodeError) else shortened(" ".join(str(error).split()), 200)
        place = f"{settings.host}:{settings.port}"
        raise (Refused if _is_final(error) else LakehouseError)(
            f"{place} did not take a mail: {reason}; check alerts.mail"
        ) from None


def _is_final(error: Exception) -> bool:
    """Whether the server has refused this message for good, and not the login or the sender, as of every message."""
    return isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500


def _said(reason: bytes | str) -> str:
    return shortened(" ".join((reason if isinstance(reason, str) else reason.decode(errors="replace")).split()), 200)


def _connected(settings: MailSettings) -> smtplib.SMTP:
    if settings.tls == "tls":
        return smtplib.SMTP_SSL(settings.host, settings.port, timeout=SECONDS, context=ssl.create_default_context())
    server = smtplib.SMTP(settings.host, settings.port, timeout=SECONDS)
    if settings.tls == "starttls":
        server.starttls(context=ssl.create_default_context())
    return server


def _mail(settings: MailSettings, body: Mapping[str, Any]) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = shortened(f"lakehouse {headline(body)}", 200)
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Date"] = formatdate()
    mail["Message-ID"] = make_msgid(domain="lakehouse")
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(full_text(body))
    return mail
