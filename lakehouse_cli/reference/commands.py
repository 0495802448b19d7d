"""The page of commands: every command with its arguments and options, as its help has them."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from lakehouse_cli.commands import COMMANDS, command_line
from lakehouse_cli.reference.text import code, markdown_table

INTRODUCTION = """# Commands

<!-- written by `make docs` from lakehouse_cli -->

Every command has `--help`, and `--json` where a machine may read its output. On failure the exit status is not zero
and one line names the remedy. Commands work on the project of the folder in which they run, with the
[settings](settings.md) that apply there.
"""
PARTS = {"machine": "Servers and processes", "source": "Sources", "lake": "The lake"}  # by folder of lakehouse_cli


def commands_page() -> str:
    """The whole page."""
    tree = typer.main.get_command(command_line())
    assert isinstance(tree, TyperGroup)
    commands = tree.commands
    parts = [INTRODUCTION]
    for folder, title in PARTS.items():
        names = [name for name, (module, _) in COMMANDS.items() if _part(module) == folder]
        rows = [(f"[`lakehouse {name}`](#lakehouse-{name})", _help(commands[name])[0]) for name in names]
        parts += [f"## {title}\n", markdown_table(("command", "what it does"), rows)]
        parts += [section for name in names for section in _sections(f"lakehouse {name}", commands[name])]
    return "\n".join(parts)


def _part(module: str) -> str:
    folder = module.split(".")[1]
    return folder if folder in PARTS else "machine"


def _sections(name: str, command: Any) -> Iterator[str]:
    context = typer.Context(command)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield "\n\n".join((f"### {name}", *_help(command), code(usage))) + "\n"
    records = [parameter.get_help_record(context) for parameter in command.params if parameter.name != "help"]
    if options := [(code(record[0]), _plain(record[1])) for record in records if record]:
        yield markdown_table(("argument or option", "meaning"), options)
    for sub, child in command.commands.items() if isinstance(command, TyperGroup) else ():
        yield from _sections(f"{name} {sub}", child)


def _help(command: Any) -> list[str]:
    """The paragraphs of the help."""
    return re.split(r"\n\s*\n", _plain(inspect.cleandoc(command.help or "")))


def _plain(text: str) -> str:
    """Placeholders in angle brackets are no HTML."""
    return re.sub(r"<(?=\w)", r"\<", text)
