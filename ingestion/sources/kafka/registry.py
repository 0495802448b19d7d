"""Schemas by their ids, from a registry that speaks Confluent's HTTP API.

A schema that is known is asked for again only after a while, and if the registry is down then, it goes on being used:
an id always means the same schema. One that the registry later describes otherwise is refused, since events that were
written by the one schema would be misread by the other. The warehouse keeps what was seen (`ingestion.state.schemas`),
so that this is noticed on every machine, and for when the registry is down: without it nothing is read.

What is used without asking counts from the moment at which the registry was last asked. So one that was set up anew is
noticed within a minute of its being there. What answers and is no registry, wants another login, or has a certificate
that is not trusted, may be another one too: then nothing is read.
"""

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlsplit

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from ingestion.sources.kafka.certificates import remedy_of, says_of
from ingestion.state.schemas import KeptSchemas, kept_schemas
from lakehouse.errors import LakehouseError
from lakehouse.servers.outage import BROKEN_OFF
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import BrokerSettings, Settings

SECONDS = 10.0
AGAIN_SECONDS = 60.0
MISSING_SECONDS = 5.0  # a topic may have nothing but events of a schema that is not there
ANY_DIGITS = 100_000  # fastavro rounds a decimal to the precision of its schema, which nobody enforces who writes
LOGICAL = "lake.logicalType"  # under which a schema keeps a logical type by which it is not read
DEFAULT = "lake.default"  # and a field its default
NOT_FOUND = (40403, 40402, 40401)  # schema, version, subject: what the API says, where a proxy says 404 alone
_known: dict[str, tuple[float, "Schema"]] = {}  # of this process, by the object that keeps it
_unknown: dict[str, tuple[float, str]] = {}
_silent: dict[str, float] = {}  # when a registry was last asked in vain
_doubting: set[str] = set()  # of what schemas mean, those who keep that an id means something else


class UnknownSchema(ValueError):
    """There is no such schema, or it is not Avro's; the text says so."""


class MissingSchema(UnknownSchema):
    """The registry has none of that id."""


@dataclass(frozen=True)
class Bare:
    """A schema whose data are read without logical types, and the schemas that it names."""

    root: Any
    named: dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """A writer's schema: as it was registered, and as fastavro reads by it."""

    id: int
    text: str
    parsed: Any = field(compare=False, repr=False)

    @cached_property
    def bare(self) -> Bare:
        """The schema without its logical types, which it keeps as LOGICAL."""
        named: dict[str, Any] = {}
        parsed: Any = None
        for part in json.loads(self.text):
            parsed = parse_schema(_read_by(json.loads(part), LOGICAL), named_schemas=named)
        return Bare(parsed, named)

    def means(self, other: "Schema") -> bool:
        """Whether it is the same schema, however both are spelled: a registry that is moved may print it otherwise."""
        return _unspelled(self.text) == _unspelled(other.text)


@dataclass(frozen=True)
class SchemaRegistry:
    """How the registry of a source is reached. Travels by pickle; holds the password."""

    source: str
    url: str
    user: str | None
    password: str | None
    ca: str | None
    kept: KeptSchemas

    def schema(self, number: int) -> Schema:
        """The schema of that id; raises UnknownSchema, and LakehouseError where it cannot be told."""
        place, began = self.kept.location(number), time.monotonic()
        at, known = _known.get(place, (0.0, None))
        if known is not None and began - at < AGAIN_SECONDS:
            return known
        if began - _unknown.get(place, (-MISSING_SECONDS, ""))[0] < MISSING_SECONDS:
            raise UnknownSchema(_unknown[place][1])
        if (asked := self._silent_since()) is not None and (meant := self._meant(number, known)) is not None:
            _known[place] = asked, meant
            return meant
        try:
            found = self._fetched(number)
        except Unreachable:
            _silent[self.url] = began
            meant = self._meant(number, known)
            if meant is None:
                raise
            found = meant
        except UnknownSchema as unknown:
            kept = self._kept(number) if isinstance(unknown, MissingSchema) else None
            if kept is None:
                _unknown[place] = time.monotonic(), str(unknown)
                raise
            found = kept  # it has lost it, or somebody deleted it: what it meant is known all the same
        else:
            _silent.pop(self.url, None)
            if known is None or not known.means(found):
                _known.pop(place, None)
                self._keep(found)
            elif self._whose in _doubting:
                self._trust(found)
        _known[place] = began, found
        return found

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, where it is reached by TLS."""
        at = urlsplit(self.url)
        return (at.hostname, at.port or 443) if at.scheme == "https" and at.hostname else None

    def check_trusted(self) -> None:
        """Raises LakehouseError where what answers is not trusted, as `schema` would; nothing where nothing answers,
        and schemas that are known are read by."""
        with suppress(Unreachable):
            self.check()

    def check(self) -> None:
        """Raises LakehouseError where no registry answers."""
        self._asked("schemas/types")

    def _silent_since(self) -> float | None:
        """When it was asked in vain, a moment ago: each schema that is known would wait for it anew."""
        asked = _silent.get(self.url, -AGAIN_SECONDS)
        return asked if time.monotonic() - asked < AGAIN_SECONDS else None

    def _meant(self, number: int, known: Schema | None) -> Schema | None:
        """What an id meant, for when the registry cannot be asked; None where nothing is known of it, and where the
        registry was seen to be set up anew: its events may be in the topics."""
        if self.kept.is_doubted(number):
            _doubting.add(self._whose)
            return None
        return known or self._kept(number)

    def _trust(self, found: Schema) -> None:
        if not self.kept.trust(found.id):
            _doubting.discard(self._whose)

    def _fetched(self, number: int) -> Schema:
        try:
            answer = self._asked(f"schemas/ids/{number}")
            if (kind := answer.get("schemaType") or "AVRO") != "AVRO":
                raise UnknownSchema(f"schema {number} is {kind}, not Avro")
            parts = [*self._referenced(answer.get("references") or (), set()), answer["schema"]]
            if not all(isinstance(part, str) for part in parts):
                raise TypeError
        except (LookupError, TypeError, AttributeError):
            raise self._is_none() from None
        return _parsed(number, json.dumps(parts))

    def _referenced(self, references: Any, seen: set[tuple[str, int]]) -> Iterator[str]:
        """The schemas that another one names, each after those that it names itself."""
        for reference in references:
            subject, version = reference["subject"], reference["version"]
            if (subject, version) not in seen:
                seen.add((subject, version))
                answer = self._asked(f"subjects/{quote(subject, safe='')}/versions/{version}")
                yield from self._referenced(answer.get("references") or (), seen)
                yield answer["schema"]

    def _asked(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/{path}", headers={"Accept": "application/json"})
        if self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            trust = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.ca))
        except OSError:
            says = f"source {self.source!r}: {self.ca} holds no certificates that can be read here"
            raise LakehouseError(f"{says}: correct {self._variable}CA") from None
        try:
            with urllib.request.build_opener(_NoRedirect, trust).open(request, timeout=SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refused(error.code, _body(error), path) from None
        except BROKEN_OFF as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):  # another one may answer there
                remedy = remedy_of(reason, self._variable, f"name it in {self._variable}URL as its certificate does")
                says = f"has a certificate that is not trusted ({says_of(reason)})"
                raise LakehouseError(f"{self._where} {says}: {remedy}") from None
            if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":  # nor is it the former one
                raise LakehouseError(f"{self._where} speaks no TLS: correct {self._variable}URL") from None
            says = f"{self._where} does not answer ({reason}): start it, or correct {self._variable}URL"
            raise Unreachable(says) from None
        except ValueError:
            raise self._is_none() from None

    def _refused(self, status: int, body: bytes, path: str) -> Exception:
        code = None
        with suppress(ValueError, AttributeError):
            code = json.loads(body).get("error_code")
        if status == 404 and code in NOT_FOUND:
            return MissingSchema(f"{path.replace('schemas/ids/', 'schema ')} is not in the registry")
        if status in (401, 403):
            says = f"refuses the login ({status}): correct {self._variable}USER and {self._variable}PASSWORD"
            return LakehouseError(f"{self._where} {says}")
        if status >= 500 or status == 429:
            return Unreachable(f"{self._where} fails ({status}): look at its log; nothing was published")
        return self._is_none()

    def _is_none(self) -> LakehouseError:
        return LakehouseError(f"{self._where} is no schema registry: correct {self._variable}URL")

    def _keep(self, found: Schema) -> None:
        """Keeps what is not kept yet; raises LakehouseError where the kept one is another.

        What this process remembers does not count: whoever removes the object need not start anything again.
        """
        before = self._kept(found.id) or self._readable(found.id, self.kept.keep(found.id, found.text))
        if not before.means(found):
            self.kept.doubt(found.id)
            _doubting.add(self._whose)
            raise LakehouseError(
                f"{self._where} gives another schema for id {found.id} than before: it was set up anew, and events "
                f"that are in the topics would be misread. Restore it; if none of its events is in a topic any more, "
                f"remove {self._places(found.id)} and ingest again"
            )
        self._trust(found)

    def _kept(self, number: int) -> Schema | None:
        text = self.kept.read(number, self.url)
        return None if text is None else self._readable(number, text)

    def _readable(self, number: int, text: str) -> Schema:
        try:
            return _parsed(number, text)
        except UnknownSchema:  # whose events are no dead letters
            says = f"what is kept of schema {number} cannot be read: remove {self._places(number)} and ingest again"
            raise LakehouseError(f"source {self.source!r}: {says}") from None

    def _places(self, number: int) -> str:
        return " and ".join(self.kept.places(number, self.url))

    @property
    def _whose(self) -> str:
        return f"{self.kept.folder}/{self.source}"

    @property
    def _where(self) -> str:
        return f"source {self.source!r}: the schema registry at {self.url}"

    @property
    def _variable(self) -> str:
        return f"LAKEHOUSE_SOURCES__{self.source.upper()}__SCHEMA_REGISTRY__"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever is redirected to must not get the login."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def registry_of(settings: Settings, source: str, of: BrokerSettings) -> SchemaRegistry | None:
    """The registry that a source declares."""
    if (given := of.schema_registry) is None:
        return None
    password = given.password.get_secret_value() if given.password else None
    ca = str(given.ca) if given.ca else None
    kept = kept_schemas(settings, source)
    return SchemaRegistry(source, given.url.rstrip("/"), given.user, password, ca, kept)


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read()
    except BROKEN_OFF:
        return b""


def _parsed(number: int, text: str) -> Schema:
    """The last of the schemas, which may name the others."""
    named: dict[str, Any] = {}
    try:
        for part in json.loads(text):
            parsed = parse_schema(_read_by(json.loads(part)), named_schemas=named)
    except (SchemaParseException, UnknownType, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UnknownSchema(f"schema {number} is no schema of Avro ({type(error).__name__})") from None
    for schema in (parsed, *named.values()):
        _widen(schema)
    return Schema(number, text, parsed)


def _unspelled(text: str) -> list[Any]:
    return [json.loads(part) for part in json.loads(text)]


def _widen(schema: Any) -> None:
    """Lets a decimal have any number of digits."""
    if isinstance(schema, list):
        for part in schema:
            _widen(part)
    elif isinstance(schema, dict):
        if schema.get("logicalType") == "decimal":
            schema["precision"] = ANY_DIGITS
        for inner in ("type", "items", "values"):
            _widen(schema.get(inner))
        for one in schema.get("fields", ()):
            _widen(one["type"])


def _read_by(schema: Any, logical: str = "logicalType") -> Any:
    """A schema as data are read by it: logical types have the name `logical`, and the defaults of fields the name
    DEFAULT, since only another schema than the writer's needs them, and fastavro refuses one that does not fit."""
    if isinstance(schema, list):
        return [_read_by(part, logical) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {logical if name == "logicalType" else name: part for name, part in schema.items()}
    inner = {name: _read_by(kept[name], logical) for name in ("type", "items", "values") if name in kept}
    if isinstance(kept.get("fields"), list):
        inner["fields"] = [_field(one, logical) for one in kept["fields"]]
    return kept | inner


def _field(given: Any, logical: str) -> Any:
    kept = {DEFAULT if name == "default" else name: part for name, part in given.items()}
    return kept | {"type": _read_by(given["type"], logical)}
