"""The paths of the stack's own files below the home."""

from pathlib import Path

from lakehouse.settings import Settings


def run_dir(settings: Settings) -> Path:
    """The folder of pid files, ports, credentials and rendered configuration."""
    return settings.home / "run"


def pid_file(settings: Settings, name: str) -> Path:
    """The pid file of a server."""
    return run_dir(settings) / f"{name}.json"


def ports_file(settings: Settings) -> Path:
    """The file with the chosen ports."""
    return run_dir(settings) / "ports.json"


def credentials_file(settings: Settings) -> Path:
    """The file with generated passwords and keys, including those of the superusers."""
    return run_dir(settings) / "credentials.json"
