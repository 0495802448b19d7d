"""The catalog service goes on as another user than root."""

import os
import subprocess
import sys

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_serve.user import become

AS_NOBODY = """
import os
from lakehouse_serve.user import become
become("nobody")
print(os.getresuid(), os.getresgid(), os.getgroups())
try:
    os.setuid(0)
except PermissionError:
    print("for good")
"""


def test_a_user_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(LakehouseError, match="LAKEHOUSE_SERVE__USER: there is no user 'nobody-at-all'"):
        become("nobody-at-all")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone becomes somebody else")
def test_it_becomes_that_user_for_good() -> None:
    done = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, check=True)
    assert done.stdout == "(65534, 65534, 65534) (65534, 65534, 65534) []\nfor good\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become anybody")
def test_who_is_not_root_becomes_nobody_else() -> None:
    with pytest.raises(LakehouseError, match="only root can become 'root': unset it"):
        become("root")
