"""Generates dbt models from declarations, and proposes a declaration from a database."""

from scaffold.declared import declared_alone
from scaffold.diagram import diagram
from scaffold.files import Change, apply, plan
from scaffold.models import models_of
from scaffold.propose import propose

__all__ = ["Change", "apply", "declared_alone", "diagram", "models_of", "plan", "propose"]
