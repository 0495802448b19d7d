"""Marks of single cases."""

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow(*values: Any) -> ParameterSet:
    """A case of `pytest.mark.parametrize` that `make test-all` alone runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def seeds(count: int, always: int) -> list[Any]:
    """Cases by seeds from 0 on, of which `make test` runs the first `always`."""
    return [seed if seed < always else slow(seed) for seed in range(count)]
