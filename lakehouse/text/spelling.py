"""Unknown keys, in declarations and settings, with the one that was probably meant."""

import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

Keys = Sequence[str | int]
_QUOTED = r"\"[^\"]*\"|'[^']*'"
CLOSE = 0.85  # for names that may also be another program's
MISSPELLED = 0.8  # for those of ours that nobody would miss: a column is open to readers, a table has no vault


def unknown(key: str, known: Collection[str], quote: str = "`") -> str:
    """The error text for an unknown key, with the key to write instead."""
    meant = close(key, known, 0.6)
    instead = f": did you mean {quote}{meant}{quote}?" if meant else f"; known are {', '.join(sorted(known))}"
    return f"unknown key {quote}{key}{quote}{instead if known else ''}"


def close(name: str, known: Collection[str], cutoff: float = CLOSE) -> str | None:
    """The most similar known name, if one is similar."""
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def keys_at(model: type[BaseModel], path: Keys) -> set[str]:
    """The keys that a model knows at a place within it, as pydantic's errors name places."""
    return {name for kind in kinds_at(model, path) if _is_model(kind) for name in kind.model_fields}


def kinds_at(model: type[BaseModel], path: Keys) -> list[Any]:
    """The types that a value may have at a place within a model."""
    kinds: list[Any] = [model]
    for part in path:
        kinds = [inner for kind in kinds for inner in _step(kind, part)]
    return kinds


def without_kinds(model: type[BaseModel], path: Keys) -> tuple[str, ...]:
    """The path as a person wrote it: pydantic puts the name of a type where a value may have one of several."""
    kinds: list[Any] = [model]
    kept = []
    for part in path:
        if not any(_is_kind(kind, part) for kind in kinds):
            kept.append(str(part))
        kinds = [inner for kind in kinds for inner in _step(kind, part)]
    return tuple(kept)


def line_in_toml(text: str, path: Keys) -> int | None:
    """The line on which the deepest key of the path stands, or begins; None where not even the first does."""
    table: list[str] = []
    deepest, found = 0, None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(#.*)?$", line)
        key = re.match(rf"\s*((?:[\w.-]|{_QUOTED})+)\s*=", line)
        if header:
            here = table = _parts(header[1])
        elif key:
            here = table + _parts(key[1])
        else:
            continue
        here = here[: len(path)]
        if len(here) > deepest and here == [str(part) for part in path[: len(here)]]:
            deepest, found = len(here), number
    return found


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(rf"{_QUOTED}|[^\s.]+", dotted)]


def _step(kind: Any, part: str | int) -> Iterator[Any]:
    if _is_kind(kind, part):
        yield kind
    elif _is_model(kind):
        if (field := kind.model_fields.get(str(part))) is not None:
            yield from _alternatives(field.annotation)
    elif get_origin(kind) is dict:
        yield from _alternatives(get_args(kind)[1])
    elif get_origin(kind) in (tuple, list):
        yield from _alternatives(get_args(kind)[0])


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one)
    else:
        yield annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_kind(kind: Any, part: str | int) -> bool:
    return _is_model(kind) and part == kind.__name__ and part not in kind.model_fields
