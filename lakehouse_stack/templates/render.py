"""Renders the configuration templates shared by the embedded stack and docker/."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """The rendered template; a missing value is an error, not an empty string."""
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
    """A value for a Java properties file: escapes backslashes and non-ASCII characters, which Java may misread."""
    units = str(value).replace("\\", "\\\\").encode("utf-16-be")
    numbers = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(chr(number) if number < 128 else f"\\u{number:04x}" for number in numbers)
