"""`lakehouse completion`: what a shell completes, as a script that asks no Python when a key is pressed."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Words = Mapping[str, list[str]]
_BASH = """\
_lakehouse() {{
    local at= word words
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        case "$at $word" in
            {known}) at="$at $word" ;;
        esac
    done
    case "$at" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _lakehouse lakehouse"""
_ZSH = "autoload -Uz compinit bashcompinit\ncompinit\nbashcompinit\n"
_FISH = """\
function __lakehouse_at
    set -l at
    for word in (commandline -opc)[2..]
        contains -- "$at $word" {known}; and set at "$at $word"
    end
    test "$at" = "$argv[1]"
end"""


class Shell(StrEnum):
    """The shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")]) -> None:
    """Print what makes a shell complete commands and options.

    bash: `eval "$(lakehouse completion bash)"` in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish:
    `lakehouse completion fish > ~/.config/fish/completions/lakehouse.fish`.
    """
    from lakehouse_cli.commands import command_line

    for line in script(shell, dict(_words("", typer.main.get_command(command_line())))).split("\n"):
        print(line)  # noqa: T201 (a shell takes it to the letter)


def script(shell: Shell, words: Words) -> str:
    """The script for a shell; `words` are what may follow each command, `""` the program itself."""
    known = [f'"{at}"' for at in words if at]
    if shell is Shell.FISH:
        lines = [
            f'complete -c lakehouse -n "__lakehouse_at \'{at}\'" -f -a "{" ".join(said)}"' for at, said in words.items()
        ]
        return "\n".join([_FISH.format(known=" ".join(known)), *lines])
    cases = "\n".join(f'        "{at}") words="{" ".join(said)}" ;;' for at, said in words.items())
    return (_ZSH if shell is Shell.ZSH else "") + _BASH.format(known="|".join(known), cases=cases)


def _words(at: str, command: Any) -> Iterator[tuple[str, list[str]]]:
    """What may follow each command: its sub-commands and its options."""
    subs = command.commands if isinstance(command, TyperGroup) else {}
    options = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    yield at, [*subs, *(name for name in options if name.startswith("--")), "--help"]
    for name, child in subs.items():
        yield from _words(f"{at} {name}", child)
