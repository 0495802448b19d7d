"""Macros of the dbt project as Python functions, without a server and without a dbt run."""

import json
import re
from functools import cache
from hashlib import md5
from types import SimpleNamespace
from typing import Any

from dbt.clients.jinja import MacroGenerator
from dbt_common.clients.jinja import MacroReturn

from lakehouse.settings import DBT_PACKAGE

MACROS = DBT_PACKAGE / "macros"
MACRO = re.compile(r"\{% macro (\w+)\(.*?\{%-? endmacro %\}", re.DOTALL)


ARRAY_JOIN = (
    "create macro if not exists array_join(parts, delimiter) as coalesce(array_to_string(parts, delimiter), '')"
)


class Refused(Exception):
    """What `exceptions.raise_compiler_error` raises here."""


def macro(name: str, **stubs: Any) -> MacroGenerator:
    """The macro of that name; `stubs` stand in for other macros or for what dbt provides."""
    return macros(macro_texts(), **stubs)[name]


def macros(texts: dict[str, str], **stubs: Any) -> dict[str, Any]:
    """All macros of these texts and what they see, by name."""
    context: dict[str, Any] = _provided() | stubs
    context["cdc_vault"] = SimpleNamespace(**stubs)
    for other, text in texts.items():
        if other not in stubs:
            node = SimpleNamespace(name=other, macro_sql=text, unique_id=f"macro.{other}")
            context[other] = MacroGenerator(node, context)
            setattr(context["cdc_vault"], other, context[other])
    return context


@cache
def macro_texts() -> dict[str, str]:
    """Every macro of the project by name."""
    found = {}
    for file in sorted(MACROS.rglob("*.sql")):
        found.update({match[1]: match[0] for match in MACRO.finditer(file.read_text())})
    return found


def _provided() -> dict[str, Any]:
    def leave(value: Any) -> None:
        raise MacroReturn(value)

    def refuse(message: str) -> None:
        raise Refused(message)

    return {
        "return": leave,
        "execute": True,
        "modules": {"re": re},
        "fromjson": json.loads,
        "tojson": json.dumps,
        "local_md5": lambda text: md5(text.encode(), usedforsecurity=False).hexdigest(),
        "var": lambda _, default: default,
        "env_var": lambda _, default: default,
        "adapter": SimpleNamespace(quote=lambda name: f'"{name}"'),
        "should_full_refresh": lambda: False,
        "log": lambda _, info=False: None,
        "exceptions": SimpleNamespace(raise_compiler_error=refuse),
        "model": SimpleNamespace(name="a_model"),
        "graph": {"nodes": {}},
    }
