"""Marks of single cases."""

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow(*values: Any) -> ParameterSet:
    """A case of `pytest.mark.parametrize` that `make test-all` alone runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
