"""What the ids of a source's schema registry meant when they were first read: objects in the warehouse.

Each task reaches the warehouse, wherever it runs, so a registry that was set up anew is noticed on every machine. A
backup of the warehouse has these objects too. They lie beside the folders of namespaces, in none that a table can have,
and maintenance removes nothing there.

Nothing is overwritten: who finds no meaning writes its own and goes by what is read back. Stores that PyIceberg reaches
have no write that fails for an object which is there, so of two tasks that find none at the same moment the later one
wins. Both mean the same unless the registry was set up anew between their two questions.

A further object names the ids that the registry has described otherwise than they are kept. While it is there, nobody
reads by what is kept alone: the registry may be down because somebody mends it, and its new events are in the topics.
But for ids that the registry has been asked for since, and has described as they are kept: these mean the same in both.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from lakehouse.catalog.file_io import file_io
from lakehouse.catalog.objects import list_objects
from lakehouse.catalog.open import file_io_properties
from lakehouse.servers.outage import said
from lakehouse.servers.retry import Unreachable
from lakehouse.settings import BrokerSettings, Settings

FOLDER = "schemas"
DOUBT = "doubt"


@dataclass(frozen=True)
class KeptSchemas:
    """The texts of a source's schemas by id. Travels by pickle; holds the keys of the object store."""

    source: str
    folder: str  # in the warehouse
    io_properties: Mapping[str, str] = field(repr=False)
    files: Path  # where earlier releases kept them, on the machine of a task

    def read(self, number: int, url: str) -> str | None:
        """The text of that id, None if nothing is kept; raises Unreachable.

        One that only a file has, of the source or of the registry at `url`, is kept in the warehouse from now on.
        """
        with self._reached(number), suppress(FileNotFoundError):
            return self._content(self.location(number))
        earlier = next(filter(None, map(_text, self._files(number, url))), None)
        return None if earlier is None else self.keep(number, earlier)

    def keep(self, number: int, text: str) -> str:
        """Keeps the text if there is none, and returns what is kept; raises Unreachable."""
        with self._reached(number):
            output = file_io(self.io_properties).new_output(self.location(number))
            with suppress(FileExistsError), output.create() as stream:
                stream.write(text.encode())
            return self._content(self.location(number))

    def doubt(self, number: int) -> None:
        """Keeps that the registry gives another text for that id; raises Unreachable."""
        with self._reached(number):
            known = self._doubts()
            if known is None or number not in known.other:
                self._put(_Doubts([*(known.other if known else ()), number], []))

    def trust(self, number: int) -> bool:
        """The registry gives for that id what is kept: a doubt that it has raised is none. Returns whether others are
        left; raises Unreachable."""
        with self._reached(number):
            known = self._doubts()
            if known is None:
                return False
            left = _Doubts([n for n in known.other if n != number], [*{*known.same, number}])
            if not left.other:
                file_io(self.io_properties).delete(self._doubt)
            elif left.other != known.other or number not in known.same:
                self._put(left)
            return bool(left.other)

    def is_doubted(self, number: int) -> bool:
        """Whether that id may mean something else by now: it, or another one, was given another text, and the registry
        has not given for it since what is kept; raises Unreachable."""
        with self._reached(number):
            known = self._doubts()
        return known is not None and number not in known.same

    def _doubts(self) -> "_Doubts | None":
        with suppress(FileNotFoundError):
            told = json.loads(self._content(self._doubt))
            return _Doubts(**told) if isinstance(told, dict) else _Doubts([told], [])  # as earlier ones kept it
        return None

    def _put(self, doubts: "_Doubts") -> None:
        with file_io(self.io_properties).new_output(self._doubt).create(True) as stream:
            stream.write(json.dumps(asdict(doubts)).encode())

    def places(self, number: int, url: str) -> list[str]:
        """All that has to be removed for an id to mean nothing again, as far as this machine sees."""
        return [self.location(number), *(str(file) for file in self._files(number, url) if _text(file))]

    def location(self, number: int) -> str:
        """The object of that id. Named by the source, whose events mean the same at another address of its registry."""
        return f"{self.folder}/{self.source}-{number}.json"

    @property
    def _doubt(self) -> str:
        return f"{self.folder}/{self.source}-{DOUBT}.json"

    def _content(self, location: str) -> str:
        with file_io(self.io_properties).new_input(location).open() as stream:
            return stream.read().decode(errors="replace")

    def _files(self, number: int, url: str) -> tuple[Path, Path]:
        by_address = sha256(url.encode()).hexdigest()[:16]
        return self.files / f"{self.source}-{number}.json", self.files / f"{by_address}-{number}.json"

    @contextmanager
    def _reached(self, number: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unreachable(
                f"source {self.source!r}: what schema {number} means is kept in the object store, in "
                f"{self.location(number)}: {said(error)}; nothing is lost, the next run goes on from here"
            ) from None


@dataclass(frozen=True)
class _Doubts:
    """The ids that the registry has described otherwise, and those that it has described as before since."""

    other: list[int]
    same: list[int]


def _text(file: Path) -> str | None:
    """None also where a task may not read it: it may run on another machine, as somebody else."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None


def kept_schemas(settings: Settings, source: str) -> KeptSchemas:
    """Those of a source."""
    folder = f"{settings.warehouse.rstrip('/')}/{FOLDER}"
    return KeptSchemas(source, folder, file_io_properties(settings), settings.home / FOLDER)


def list_schemas(settings: Settings, source: str) -> tuple[list[str], list[Path]]:
    """The objects, and the files of this machine, that say what ids of a source mean; raises OSError."""
    if not isinstance(settings.connection(source), BrokerSettings):
        return [], []
    kept = kept_schemas(settings, source)
    own = re.compile(rf"{re.escape(source)}-(\d+|{DOUBT})\.json")
    paths = (stored.path for stored in list_objects(file_io(kept.io_properties), kept.folder))
    objects = [path for path in paths if own.fullmatch(path.rpartition("/")[2])]
    return sorted(objects), sorted(kept.files.glob(f"{source}-*.json"))


def forget_schemas(settings: Settings, source: str) -> None:
    """Lets each id of a source mean nothing again; raises OSError."""
    objects, files = list_schemas(settings, source)
    io = file_io(file_io_properties(settings))
    for path in objects:
        io.delete(path)
    for file in files:
        file.unlink(missing_ok=True)
