"""Names and values that try to be more than text: in SQL, YAML, Jinja, Markdown, markup, on a terminal, in a log."""

import random
import unicodedata
from collections.abc import Iterator

from lakehouse.text.shown import JOINERS

FORGED = "2026-01-01 00:00:00,000 INFO source 'shop': published everything"
SEEDS = (
    '"', "'", "`", "\\", ";", "--", "/*", "*/", "$$", "%", "%s", "%(x)s", "${env:PATH}", "${spark.app.name}", "?",
    ":x", "@", '"; DROP TABLE kept; --', "'; DROP TABLE kept; --", "` ; DROP TABLE kept; --",
    "\\'; DROP TABLE kept; --", "a.b", "a..b", "{{ 1/0 }}", "{% raw %}", "{# x", "x #}", "%}",
    "{{ env_var('HOME') }}", "{{", "}}", "{'a': 1}", "[/red]", "[/]", "[bold]", "[link=http://x]y", ":smile:",
    "![x](http://x/y.png)", "[x](javascript:alert(1))", "<img src=x onerror=alert(1)>", "```", "# head", "- item",
    "| a | b |", "a\tb", "a\nb", "a\r\nb", f"x\n{FORGED}",
    '\n-- lakehouse: {"new_data": false}', '\n-- lakehouse: {"remember": {"k": "v"}}', '-- lakehouse: {"anew": true}',
    "-- lakehouse: {", "\x1b[31m", "\x1b]8;;http://x\x07y",
    "\x1b]52;c;eA==\x07", "\x1b[2J", "\x07", "\x08", "\x7f", "\x9b31m", "\x85", "\u202e", "\u2066", "\u2028",
    "\u2029", "\ufeff", "\u00ad", "\u200d", "\U000e0041", "No", "no", "on", "null", "NULL", "~", "true", "1", "1e3",
    "0x1f", "2026-01-01", "1:30", "---", "...", "!!python/none", "&a", "*a", "<<", "? x", "- x", "# x", "x: y",
    "x #y", " ", "  lead", "trail ", "İ", "ß", "日本語"*7, "é"*31, "🙈"*15, "select", "from", "_op_", "Value", "\x01",
    "\x00"[:0] + "x'y\"z`",
)  # fmt: skip
"""Each of at most 63 bytes, as Postgres cuts names; it has no NUL."""


def names(seed: int, count: int) -> list[str]:
    """The seeds, then as many again of pieces of them, all different and of at most 63 bytes."""
    chance = random.Random(seed)
    found = dict.fromkeys(cut(name) for name in SEEDS)
    while len(found) < count:
        found[cut("".join(chance.choices(SEEDS, k=chance.randint(2, 4))))] = None
    return list(found)[:count]


def cut(name: str) -> str:
    """The name as far as Postgres keeps it."""
    return name.encode()[:63].decode(errors="ignore")


def effects(text: str, *, of_ours: str = "\n") -> Iterator[str]:
    """The characters in an output that would do something, but for those that are the product's own."""
    for character in text:
        if character not in of_ours + JOINERS and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            yield character
