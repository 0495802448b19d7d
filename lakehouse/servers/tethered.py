"""Commands that end with the process that runs them, even if it is killed with SIGKILL and can end nothing itself."""

import os
import sys
from collections.abc import Sequence

# Linux signals a child whose parent has died, if the child has asked for that, and keeps to it through exec. SIGINT
# lets dbt cancel its queries; where SIGINT is ignored, as in the background of a script, SIGTERM ends it.
_START = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM if is_ignored else signal.SIGINT)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tethered(command: Sequence[str]) -> list[str]:
    """The command as one that ends with this process; for the thread that waits for it."""
    return [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *command]
