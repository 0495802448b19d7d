"""The registry of actions: each has a module with all that plans, commands and jobs ask of it."""

from inspect import signature

import pytest

from lakehouse.declarations.policies import MaintenancePolicy
from maintenance.actions.need import Rate
from maintenance.actions.registry import ACTIONS, Action, Module
from maintenance.inventory.health import Health
from maintenance.inventory.outcome import TableName
from maintenance.runner.run import ACTIONS as BODIES

NOTHING = MaintenancePolicy(schedule_group="nightly")


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_an_action_has_a_part_of_the_policy_and_a_module_of_its_name(action: Action) -> None:
    module = action.module
    assert action.part in MaintenancePolicy.model_fields and not action.is_asked_for(NOTHING)
    assert isinstance(module.RATE, Rate) and callable(action.body)
    for name in ("inspect", "need"):
        wanted = [parameter for parameter in signature(getattr(Module, name)).parameters if parameter != "self"]
        assert list(signature(getattr(module, name)).parameters) == wanted
    assert module.need(Health(), NOTHING) is None
    assert module.inspect(None, TableName("vault", "hub"), None, NOTHING) == {}  # type: ignore[arg-type]


def test_the_runner_takes_every_action_in_their_order() -> None:
    assert list(BODIES) == [action.name for action in ACTIONS]
