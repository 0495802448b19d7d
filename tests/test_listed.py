"""What the YAML of a model lists, by dbt on Trino and by the worker: what is not as its macro makes it is refused."""

from datetime import timedelta

import pytest

from lakehouse.errors import LakehouseError
from orchestration.worker.dbt.warm_dbt import WarmDbt
from tests.histories import START
from tests.test_full_refresh import LISTED, SATELLITE, filled, lists, rows
from tests.zoo import Zoo

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1500)]  # six runs of dbt


def test_a_load_of_a_table_that_would_lose_values_is_refused_to_dbt_and_the_worker(zoo: Zoo) -> None:
    """Of a column that was not listed, or whose type was a former one, new rows had NULL or a rounded value."""
    last = filled(zoo)
    lists(zoo, SATELLITE, LISTED)
    zoo.dbt("run", models=[SATELLITE])
    before = rows(zoo, SATELLITE)
    assert before
    zoo.publish([last | {"_op": "u", "_seq": last["_seq"] + 1, "weight": 7}], START + timedelta(days=1))
    zoo.dbt("run", models=["parsed_zoo__animals"])
    settings = zoo.settings.model_copy(update={"project_dir": zoo.project.parent})
    for listed, refusal in (
        ({name: kind for name, kind in LISTED.items() if name != "weight"}, "column weight is not in the model's YAML"),
        (LISTED | {"weight": "decimal(8,2)"}, r"as decimal\(8,2\) its values would change: run `lakehouse scaffold`"),
    ):
        lists(zoo, SATELLITE, listed)
        with pytest.raises(AssertionError, match=refusal):
            zoo.dbt("run", models=[SATELLITE])
        assert rows(zoo, SATELLITE) == before
        worker = WarmDbt(settings)
        worker.refresh()
        with pytest.raises(LakehouseError, match=refusal):
            worker.compiled([SATELLITE])
    lists(zoo, SATELLITE, LISTED)
    zoo.dbt("run", models=[SATELLITE])
    assert len(rows(zoo, SATELLITE)) == len(before) + 1
