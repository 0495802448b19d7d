"""Renders the configuration templates that the embedded stack and docker/ share."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """The template's text; a value that is missing is an error rather than an empty string."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["property"] = property_text
    return environment.get_template(template).render(**values)


def property_text(value: object) -> str:
    """A value in one of Java's property files: a backslash escapes, and Java may take each byte for a character."""
    units = str(value).replace("\\", "\\\\").encode("utf-16-be")
    numbers = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(chr(number) if number < 128 else f"\\u{number:04x}" for number in numbers)
