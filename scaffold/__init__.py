"""Generates dbt models from declarations, and proposes a declaration from a database."""

from scaffold.declared import declared_alone
from scaffold.diagram import diagram
from scaffold.elsewhere import elsewhere, not_written
from scaffold.files import Change, apply, is_own, plan
from scaffold.models import models_of
from scaffold.propose import propose, propose_addition
from scaffold.source_files import SourceFile, declaring_file, with_table, without_source, without_table

__all__ = [
    "Change", "SourceFile", "apply", "declared_alone", "declaring_file", "diagram", "elsewhere", "is_own",
    "models_of", "not_written", "plan", "propose", "propose_addition", "with_table", "without_source", "without_table",
]  # fmt: skip
