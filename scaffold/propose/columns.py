"""What a column is for, as far as its name and type tell: a secret, personal data, a technical mark, or a fact."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaffold.propose.names import lake_name

_TEXT = re.compile(r"(text|character|bpchar|bytea|citext|json|uuid|\"?char)")
_SECRET = re.compile(
    r"(^|_)(passw(or)?d|passwort|kennwort|passphrase|pwd|secret|token|api_?key|(private|access|signing|encryption)_?key"
    r"|otp|totp|mfa|salt|pin|cv[vc]|credentials?|(recovery|backup)_codes?)"
    r"(_(hash|hashed|digest|encrypted|salt|secret|seed|value|key))*$"
)
_PERSONAL = re.compile(
    r"(^|_)(first_?name|last_?name|middle_?name|full_?name|given_?name|family_?name|maiden_?name|surname|nick_?name"
    r"|user_?name|login_?name|display_?name|contact_?name|e?mail|phone|mobile|fax|address|street|postal_?code|post_?code"
    r"|line_?\d$|zip(_?code)?$|birth\w*|(date_of_)?born$|born_(at|on)$|dob$|ssn$|iban$|passport|account_?holder|card_?(number|holder)|last_?4$"
    r"|ip$|ip_addr\w*|user_?agent"
    r"|(vor|nach|familien|ruf|maedchen|benutzer|anzeige)_?name|ansprechpartner|geb_?dat(um)?$|geb_am$|geburt\w*|geboren(_am)?$"
    r"|adresse|anschrift|strasse|haus_?(nr|nummer)$|plz$|postleitzahl|wohnort|tel$|tel_?nr$|telefon|handy"
    r"|mobil$|mobil_?(nr|nummer|telefon)|iban_?(nr|nummer)$|(konto|karten)_?inhaber|(kredit)?karten_?(nr|nummer)$|reisepass"
    r"|(personal)?ausweis(_?(nr|nummer))?$)"
)
_PERSONS_NUMBER = re.compile(
    r"(^|_)(tax|national|fiscal|social_security|steuer|sozialversicherungs?)_?(id|no|nr|number|nummer)$"
)
_NOT_PERSONAL = re.compile(r"_(ids?|count|verified|confirmed|at|type|kind|typ|art|anzahl)$")
_OF_PEOPLE = re.compile(
    r"name|picture|photo|avatar|gender|nationality|foto|geschlecht|staatsangehoerigkeit|nationalitaet"
)
_STREET = re.compile(r"(^|_)(street|address|strasse|adresse|anschrift|line_?\d$)")
_PLACE = re.compile(r"city|town|ort|stadt")
_PEOPLE = {
    "user", "person", "customer", "client", "employee", "staff", "contact", "member", "patient", "student", "teacher",
    "actor", "author", "guest", "passenger", "driver", "subscriber", "recipient", "kunde", "kunden", "mitarbeiter",
    "benutzer", "nutzer", "personen", "mitglied", "mitglieder", "patienten", "schueler", "lehrer", "fahrer",
}  # fmt: skip
_TECHNICAL = re.compile(
    r"((last|date)_?)?(updated?|modified|synced|refreshed|replicated|geaendert)(_(at|on|date|time|ts|timestamp|am))?"
    r"|modification_(date|time)|(etl|dwh|sync)_\w+"
)
_WHOLE = ("smallint", "integer", "bigint")
_VERSION = re.compile(r"(row|lock|opt)_?(version|lock)|version|etag")
_ACTIVE = re.compile(
    r"last_(login|log_in|signed_in|sign_in|seen|used|active|activity|access|accessed|visit|visited|request)(_(at|on|ts|date|time))?"
    r"|((sign_in|login|logins|visit|view|click|download|access|failed|retry)_)+(count|counter|attempts)"
)


@dataclass(frozen=True)
class Parts:
    """The columns of a table that are neither its key nor a reference, by what they are for."""

    secret: tuple[str, ...]
    technical: tuple[str, ...]
    personal: tuple[str, ...]
    activity: tuple[str, ...]
    details: tuple[str, ...]


def parts(table: str, columns: Sequence[tuple[str, str]]) -> Parts:
    """The columns, given with their types, by what they are for. `table` is its singular name in the lake."""
    named = [(name, lake_name(name), kind) for name, kind in columns]
    at_home = any(_STREET.search(plain) and _is_personal(plain, kind) for _, plain, kind in named)
    found: dict[str, list[str]] = {part: [] for part in Parts.__annotations__}
    for name, plain, kind in named:
        of_people = _PEOPLE & set(table.split("_")[-1:]) and _OF_PEOPLE.fullmatch(plain)
        of_a_home = at_home and _PLACE.fullmatch(plain)
        found["personal" if of_people or of_a_home else _part(plain, kind)].append(name)
    return Parts(**{part: tuple(names) for part, names in found.items()})


def _part(name: str, kind: str) -> str:
    if is_secret(name, kind):
        return "secret"
    if _TECHNICAL.fullmatch(name) or kind == "tsvector" or (_VERSION.fullmatch(name) and kind in _WHOLE):
        return "technical"
    if _is_personal(name, kind):
        return "personal"
    return "activity" if _ACTIVE.fullmatch(name) else "details"


def is_secret(name: str, kind: str) -> bool:
    """Whether a column holds a password, a token or the like; numbers and moments do not."""
    return bool(_SECRET.search(lake_name(name)) and _TEXT.match(kind))


def _is_personal(name: str, kind: str) -> bool:
    called_so = _PERSONAL.search(name) and not _NOT_PERSONAL.search(name)
    return kind == "inet" or (bool(called_so or _PERSONS_NUMBER.search(name)) and kind != "boolean")


def looks_personal(names: Iterable[str]) -> list[str]:
    """Those of the names that are of personal data whatever their types."""
    return [name for name in names if _is_personal(lake_name(name), "text")]
