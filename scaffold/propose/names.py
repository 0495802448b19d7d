"""Names in the lake for what a database calls its tables and columns."""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Collection, Sequence

from text_unidecode import unidecode

from lakehouse.declarations.vault.names import EVENT, VALIDITY
from lakehouse.text.names import NAME

_HASH = re.compile(r"h[kd]_")
_RESERVED = {"is_deleted", *EVENT, *VALIDITY}
# Letters that are written out, and are no base letter with a mark. Umlauts as German writes them.
_LETTERS = str.maketrans({
    "ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae",
    "œ": "oe", "Œ": "Oe", "ø": "oe", "Ø": "Oe", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "þ": "th", "Þ": "Th",
    "ı": "i",
})  # fmt: skip
_SINGULAR = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "movies": "movie", "cookies": "cookie",
    "series": "series", "species": "species", "news": "news", "statuses": "status", "aliases": "alias",
    "bonuses": "bonus", "campuses": "campus", "buses": "bus", "indices": "index",
    "matrices": "matrix", "vertices": "vertex", "data": "data",
}  # fmt: skip
LONGEST = 63
"""Letters of a name that is written out, as many as Postgres allows: an ideograph becomes up to seven."""
_SUFFIX = re.compile(r"(^|_)(id|no|nr|num|number|code|key|uuid|guid|fk|ref)$")


def lake_name(name: str) -> str:
    """The name in a form that the lake allows: other scripts by their sound, and signs without one by a checksum."""
    plain = "".join(map(_written_out, unicodedata.normalize("NFC", name).translate(_LETTERS)))
    plain = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", plain).lower()
    plain = re.sub(r"\W+|_+", "_", plain, flags=re.ASCII).strip("_")[:LONGEST].strip("_")
    plain = plain or f"t_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return plain if NAME.fullmatch(plain) else f"t_{plain}"


def is_by_sound(name: str) -> bool:
    """Whether `lake_name` guesses: the name has letters that are no Latin ones with marks, or none at all."""
    others = (c for c in unicodedata.normalize("NFC", name).translate(_LETTERS) if not c.isascii() and c.isalpha())
    return not any(c.isalnum() for c in name) or any("LATIN" not in unicodedata.name(c, "") for c in others)


def _written_out(character: str) -> str:
    """A character in ASCII; the marks that stand for sounds without a letter are no separators."""
    written = unidecode(character)
    return re.sub(r"[^\w ]+", "", written, flags=re.ASCII) if character.isalpha() else written


def singular(name: str) -> str:
    """`order_categories` → `order_category`, `stores` → `store`, `status` as it is."""
    before, mark, last = name.rpartition("_")
    return f"{before}{mark}{_singular(last)}"


def thing_name(table: str, tables: Collection[str]) -> str:
    """`listings_tags` → `listing_tag`, where there is a table `listings`; else as `singular`."""
    first = max((other for other in tables if table.startswith(f"{other}_")), key=len, default="")
    return f"{singular(first)}_{singular(table[len(first) + 1 :])}" if first else singular(table)


def _singular(word: str) -> str:
    if word in _SINGULAR:
        return _SINGULAR[word]
    if word.endswith(("noses", "lyses", "theses", "crises")):
        return word[:-2] + "is"
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def free(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken; adds it to `taken`."""
    found = next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2))) if n not in taken)
    taken.add(found)
    return found


def aliases(columns: Sequence[str]) -> dict[str, str]:
    """Column → its name in the lake, for names that are not plain or that a layer reserves."""
    taken = {name for name in columns if NAME.fullmatch(name)} | _RESERVED
    found: dict[str, str] = {}
    for column in columns:
        if not NAME.fullmatch(column) or column in _RESERVED or _HASH.match(column):
            plain = lake_name(column)
            plain = f"t_{plain}" if _HASH.match(plain) else plain
            found[column] = free(f"{plain}_in_source" if plain in _RESERVED else plain, taken)
    return found


def role_name(columns: Sequence[str], key: Sequence[str], shared: set[str], hub: str, taken: set[str]) -> str:
    """What a reference to a hub is called: `assignee` for assignee_id, `user` for user_id. Adds it to `taken`.

    It goes by the columns whose name differs from that in the referenced `key`: by the words that all of them begin
    with, else by one that is in no other reference (`shared`).
    """
    other = [column for column, named in zip(columns, key, strict=True) if column != named]
    words = zip(*(lake_name(column).split("_") for column in other), strict=False)
    alike = "_".join(one for one, *more in itertools.takewhile(lambda found: len({*found}) == 1, words))
    said = next((column for column in other if column not in shared), other[0] if other else "")
    stem = _SUFFIX.sub("", alike or (lake_name(said) if said else ""))
    is_hub = not stem or hub == stem or hub.startswith(f"{stem}_") or hub.endswith(f"_{stem}")
    choices = [hub, stem] if is_hub else [stem, f"{hub}_{stem}"]
    usable = (name for name in choices if NAME.fullmatch(name) and name not in taken)
    return free(next(usable, f"other_{hub}"), taken)
