"""What a message says, for people; no secret of the settings is ever in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, SecretStr

from lakehouse.errors import LakehouseError
from lakehouse.files.secret_files import NAMED
from lakehouse.settings import Settings
from lakehouse.text.shown import CUT, shortened, visible
from lakehouse.text.urls import parse_url

HIDDEN = "***"
SHORTEST = 4  # a shorter secret would blank out ordinary words
WORD = 12  # a shorter one would blank out parts of names and commands: it is looked for as a word
LONGEST = 1000


def headline(body: Mapping[str, Any]) -> str:
    """The message on one line."""
    what = "over" if body["state"] == "over" else body["severity"]
    return f"[{what}] {body['summary']}"


def full_text(body: Mapping[str, Any]) -> str:
    """The message with what to do about it."""
    if body["state"] == "over":
        return f"{headline(body)}\nsince {body['since']}, over at {body['at']}"
    return f"{headline(body)}\n{body['to_do']}\nsince {body['since']}"


def hider(settings: Settings) -> Callable[[str], str]:
    """A function that puts a text on one line and blanks out every secret of the settings, also one that is cut."""
    spelled = {" ".join(secret.split()) for secret in _secrets(settings)}
    secrets = sorted((s for s in spelled if len(s) >= SHORTEST), key=len, reverse=True)
    patterns = [re.compile(_pattern(secret)) for secret in secrets]

    def hidden(text: str) -> str:
        text = " ".join(text.split())
        for pattern in patterns:
            text = pattern.sub(HIDDEN, text)
        return shortened(visible(_without_cut(text, secrets)), LONGEST)

    return hidden


def _without_cut(text: str, secrets: Sequence[str]) -> str:
    """The text without the beginnings of secrets before a CUT, wherever it was made: here, or in another process."""
    *cut, rest = text.split(CUT)
    return CUT.join([*(_without_begun(part, secrets) for part in cut), rest])


def _without_begun(text: str, secrets: Sequence[str]) -> str:
    begun = [n for secret in secrets for n in range(SHORTEST, len(secret)) if text.endswith(secret[:n])]
    return f"{text[: -max(begun)]}{HIDDEN}" if begun else text


def _pattern(secret: str) -> str:
    found = re.escape(secret)
    if len(secret) >= WORD:
        return found
    begins, ends = r"(?<!\w)" if secret[0].isalnum() else "", r"(?!\w)" if secret[-1].isalnum() else ""
    return begins + found + ends


def _secrets(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield from _spellings(value.get_secret_value())
    elif isinstance(value, BaseModel):
        for part in dict(value).values():
            yield from _secrets(part)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from [part] if isinstance(part, str) and NAMED.search(name) else _secrets(part)


def _spellings(secret: str) -> Iterator[str]:
    """The secret; of the address of a database, its password in either spelling too."""
    yield secret
    with suppress(LakehouseError):  # it is no address
        password = parse_url(secret).password
        yield from (password, quote(password, safe=""))
