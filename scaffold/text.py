"""The text of models: a macro call in SQL, and the YAML file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

Column = tuple[str, str, str]
MOMENT = "timestamp(6) with time zone"
WIDTH = 120
PACKAGE = "cdc_vault"  # the dbt package that all macros and tests are of


@dataclass(frozen=True)
class Model:
    """A dbt model: folder below `models/`, name, SQL, description, columns (name, type, description), tests."""

    folder: str
    name: str
    sql: str
    description: str
    columns: tuple[Column, ...]
    tests: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def files(self) -> dict[str, str]:
        """Path below the dbt project → text."""
        path = f"models/{self.folder}/{self.name}"
        return {f"{path}.sql": self.sql, f"{path}.yml": self._yaml()}

    def _yaml(self) -> str:
        lines = ["models:", f"  - name: {scalar(self.name)}", f"    description: {scalar(self.description)}"]
        if self.tests:
            lines.append("    data_tests:")
        for name, arguments in self.tests:
            lines += [f"      - {PACKAGE}.{name}:", f"          arguments: {flow(arguments)}"]
        lines.append("    columns:")
        for name, kind, description in self.columns:
            lines.append(f"      - {flow({'name': name, 'data_type': kind, 'description': description})}")
        return "\n".join(lines) + "\n"


def scalar(text: str) -> str:
    """A YAML scalar of a dbt file, quoted if it would parse as another type (`no` is a boolean)."""
    return _quoted(_unrendered(text))


def flow(value: Any) -> str:
    """YAML in flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(str(key))}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return scalar(str(value))


def _unrendered(text: str) -> str:
    """Escapes text that dbt would render as Jinja: dbt renders the values of its files, but not the keys."""
    return f"{{{{ {jinja(text)} }}}}" if re.search(r"\{[{%#]|[#}%]\}|\r|\n\Z", text) else text


def _quoted(text: str) -> str:
    plain = text.isprintable() and not set(text) & set(':;,"{}[]#&*!|>%@`\\') and text == text.strip()
    if plain and text and text[0] not in "'-?" and _is_itself(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _is_itself(text: str) -> bool:
    """Whether YAML reads it as this text, in a flow as well."""
    try:
        return bool(yaml.safe_load(text) == text and yaml.safe_load(f"[{text}]") == [text])
    except yaml.YAMLError:
        return False


def call(macro: str, *positional: Any, **arguments: Any) -> str:
    """`{{ cdc_vault.macro(...) }}`, on one line when it fits."""
    macro = f"{PACKAGE}.{macro}"
    parts = [*map(jinja, positional), *(f"{name}={jinja(value)}" for name, value in arguments.items())]
    line = f"{{{{ {macro}({', '.join(parts)}) }}}}\n"
    if len(line) <= WIDTH:
        return line
    blocks = [f"{name}={_block(value)}" for name, value in arguments.items()]
    return "{{ " + macro + "(\n" + "".join(f"  {block},\n" for block in blocks) + ") }}\n"


def _block(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{\n" + "".join(f"    {jinja(str(key))}: {jinja(item)},\n" for key, item in value.items()) + "  }"
    return jinja(value)


def jinja(value: Any) -> str:
    """A Jinja literal; escapes non-printable characters, as Jinja and dbt turn every kind of line break into `\\n`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{jinja(str(key))}: {jinja(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(jinja, value)) + "]"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + "'"
