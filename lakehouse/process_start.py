"""When a process began, by a count that no clock changes: with its pid it names one process for good."""

from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def start_of(pid: int) -> str | None:
    """The id of the boot and the ticks since then; None for a process that has ended, or a system without /proc."""
    try:
        boot = BOOT.read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else f"{boot}:{fields[19]}"
