"""What an alert cites of an error or a check: no value of a row, as alerts go where nobody logs in."""

from __future__ import annotations

import re

ABOUT = r"^(?:((?:test [^:]+|dbt failed|[\w.]+(?: \([^)]*\))?): ))?"  # as orchestration/runs/failures.py begins
CITED = (
    re.compile(rf"{ABOUT}.*\((\w+, query \w+)\)$"),
    re.compile(r"Trino\w+\(type=\w+, name=(\w+), message=.*?(, query_id=\w+)?\)?$"),
    re.compile(r"(\[[A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)*\]) .*"),  # a class of errors of Spark, and its sentence
    re.compile(r"^([\d,]+ (?:row|value)s?): .*"),
)


def without_values(text: str) -> str:
    """A line about an error or a check without what it may cite of rows: of an error of Trino or Spark its name is left
    and the query, of what a check has found the count. The rest is where one logs in, on the page of the run.
    """
    for said in CITED:
        text = said.sub(lambda found: "".join(filter(None, found.groups())), text)
    return text
