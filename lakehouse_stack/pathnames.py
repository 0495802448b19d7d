"""Where the stack keeps what it remembers of itself, below the home."""

from pathlib import Path

from lakehouse.settings import Settings


def run_dir(settings: Settings) -> Path:
    """Pid files, ports, credentials and rendered configuration."""
    return settings.home / "run"


def pid_file(settings: Settings, name: str) -> Path:
    """Where the process of a server is remembered."""
    return run_dir(settings) / f"{name}.json"


def ports_file(settings: Settings) -> Path:
    """The ports, chosen once."""
    return run_dir(settings) / "ports.json"


def credentials_file(settings: Settings) -> Path:
    """Generated passwords and keys, those of the superusers too."""
    return run_dir(settings) / "credentials.json"
