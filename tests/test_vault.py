"""The vault on Trino: unit tests of the macros, hundreds of histories at once, what the declaration's words become."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehouse.declarations.dbt.manifest import dbt_environment
from lakehouse.servers.trino import query
from lakehouse.settings import Settings
from lakehouse_cli.lake.rehash import rebuild_vault
from scaffold import apply, models_of, plan
from scaffold.text import Model
from tests.histories import START, Clock, Row, change_at_random
from tests.marks import slow
from tests.test_dbt import assert_vault_is_true, in_order, insert_parsed, literal, source_seq
from tests.unit.test_scaffold import declared
from tests.zoo import Zoo, animals, empty_project, random_animal

pytestmark = pytest.mark.stack
LOADS = 4
CLINIC = """
sources:
  - name: clinic
    schema: raw_clinic
    tables:
      - name: animals
        description: Animals.
        config: {meta: {raw: {relation: public.animals, key: [id]}, vault: {
          hub: patient, track_mentions: true, satellites: {patient_details: [name]}}}}
        columns: [{name: id, data_type: integer}, {name: name, data_type: text}]
      - name: vaccinations
        description: Vaccinations.
        config: {meta: {raw: {relation: public.vaccinations, key: [animal_id, vaccine]}, vault: {
          children_of: animal, references: {animal: {columns: [animal_id], hub: patient}},
          satellites: {patient_vaccination: [dose]}}}}
        columns: [{name: animal_id, data_type: integer}, {name: vaccine, data_type: text},
          {name: dose, data_type: integer}]
      - name: visits
        description: Visits.
        config: {meta: {raw: {relation: public.visits, key: [id]}, vault: {
          event: {name: visit, to: [patient], columns: [fee]}, references: {patient: animal_id}}}}
        columns: [{name: id, data_type: integer}, {name: animal_id, data_type: integer},
          {name: fee, data_type: integer}]
      - name: friends
        description: Which animals like one another.
        config: {meta: {raw: {relation: public.friends, key: [one_id, other_id]}, vault: {
          link: {name: friendship, to: [one, other]}, satellites: {friendship_details: [since]},
          references: {one: {columns: [one_id], hub: patient}, other: {columns: [other_id], hub: patient}}}}}
        columns: [{name: one_id, data_type: integer}, {name: other_id, data_type: integer},
          {name: since, data_type: integer}]
"""


@pytest.mark.parametrize("selected", [slow("unit_eff_sat,test_type:unit"), slow("test_type:unit")])
def test_the_unit_test_of_each_macro_passes(settings: Settings, tmp_path: Path, selected: str) -> None:
    place = {"DBT_TARGET_PATH": str(tmp_path / "target"), "DBT_LOG_PATH": str(tmp_path / "logs")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dbt")), "test", "--select", selected, "--no-use-colors"],
        cwd=settings.dbt_project_dir, capture_output=True, text=True,
        env=os.environ | dbt_environment(settings) | place | {"VAULT_UNIT_TESTS": "true"},
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-60:])
    assert " PASS unit_eff_sat::" in done.stdout, "the unit tests were not selected"


@pytest.mark.slow
def test_hundreds_of_histories_give_the_timelines_of_the_source(zoo: Zoo) -> None:
    """Each history has keys of its own, so that load k of all of them is one run of dbt. First 100 in the source's
    order; then 100 that arrive split, shuffled and delivered again, some of a load at the moment of the one before."""
    rng = random.Random(23)
    first = animals()
    first.apply("c", Clock(rng).position(), random_animal(rng)(1))
    zoo.publish(first.raw, START)
    zoo.dbt("run")
    arrived = list(first.versions)
    for campaign, in_source_order in enumerate((True, False)):
        histories = [one_history(rng, campaign * 100 + number + 1, in_source_order) for number in range(100)]
        for load in range(LOADS):
            moment = START + timedelta(days=campaign * 10 + (load if in_source_order else load // 2 * 2) + 1)
            batch = [event for history in histories for event in history[load]]
            insert_parsed(zoo, batch, moment)
            zoo.dbt("run", without="parsed")
            arrived += batch
            assert_vault_is_true(zoo, arrived)
    seen = zoo.snapshots()
    zoo.dbt("run", without="parsed")
    assert zoo.snapshots() == seen, "a rerun makes no snapshot"


def one_history(rng: random.Random, number: int, in_source_order: bool) -> list[list[Row]]:
    """Events of three keys, as loads. In the source's order, those of a load come after all of the load before."""
    table, clock, loads = animals(), Clock(rng), []
    for load in range(LOADS):
        if in_source_order:
            clock.left, clock.lsn = 0, (load + 1) * 1_000_000
        before = len(table.versions)
        for _ in range(rng.randint(1, 12)):
            change_at_random(table, clock, [number * 10 + key for key in range(3)], random_animal(rng))
        loads.append(table.versions[before:])
    if in_source_order:
        return loads
    events = [event | {"_commit_lsn": event["_commit_lsn"] + 10_000_000} for load in loads for event in load]
    rng.shuffle(events)
    ends = sorted(rng.randint(0, len(events)) for _ in range(LOADS - 1))
    parts = [events[begin:end] for begin, end in zip([0, *ends], [*ends, len(events)], strict=True)]
    return [
        part + rng.sample(events[:begin], min(begin, rng.randint(0, 3)))
        for part, begin in zip(parts, [0, *ends], strict=True)
    ]


@contextmanager
def modelled(settings: Settings, place: Path, name: str, text: str) -> Iterator[Zoo]:
    """A source that is modelled by its declaration alone; its parsed tables are there and empty."""
    project = empty_project(settings, place)
    models = write_models(project, name, text)
    lake = Zoo(settings, project, name, tuple(f"{model.folder}/{model.name}" for model in models))
    lake.clear()
    for model in models:
        if model.folder.startswith("parsed/"):
            columns = ", ".join(f'"{name}" {kind}' for name, kind, _ in model.columns)
            query(settings, f"create table parsed.{model.name} ({columns})")
    yield lake
    lake.clear()


def write_models(project: Path, name: str, text: str) -> list[Model]:
    """As `lakehouse scaffold` does, with the declaration."""
    (project.parent / "declared").mkdir(exist_ok=True)
    models = models_of(declared(project.parent / "declared", text), name)
    (project / f"models/sources/{name}.yml").write_text(text)
    apply(plan(project, name, models))
    return models


@pytest.fixture
def clinic(settings: Settings, tmp_path: Path) -> Iterator[Zoo]:
    """Tables of each kind."""
    with modelled(settings, tmp_path, "clinic", CLINIC) as lake:
        yield lake


@pytest.mark.slow
def test_children_events_links_and_mentions_are_as_the_declaration_says(clinic: Zoo) -> None:
    """Vaccinations of an animal and friendships each have a timeline; a visit is there once; every mention is kept."""
    rng = random.Random(5)
    doses: dict[Any, list[tuple[Any, ...]]] = {}
    visits: dict[int, tuple[Any, ...]] = {}
    mentions: set[tuple[Any, ...]] = set()
    friends: dict[Any, list[tuple[Any, ...]]] = {}
    lsn = 0
    for load in range(2):
        moment = START + timedelta(days=load)
        children, events = [], list(visits.values())[:2]
        for _ in range(40):
            lsn += 1
            key = (rng.randint(1, 4), rng.choice(["rabies", "flu", ""]))
            gone = key in doses and not doses[key][-1][1] and rng.random() < 0.2
            dose = None if gone else rng.choice([1, 2, None])
            children.append([*key, dose, "d" if gone else "u", gone, lsn, moment])
            if key not in doses or doses[key][-1][1:] != (gone, dose):
                doses.setdefault(key, []).append((position(lsn), gone, dose))
            mentions.add((key[0], moment, "clinic.public.vaccinations"))
        for number in range(load * 10, load * 10 + 10):
            lsn += 1
            visits[number] = (number, rng.randint(1, 6), rng.choice([5, None]), "c", False, lsn, moment)
            events.append(visits[number])
        mentions |= {(visit[1], moment, "clinic.public.visits") for visit in events}
        pairs = []
        for _ in range(30):
            lsn += 1
            pair = (rng.randint(1, 3), rng.randint(1, 3))
            gone = pair in friends and not friends[pair][-1][1] and rng.random() < 0.4
            since = None if gone else rng.choice([2020, 2021])
            pairs.append([*pair, since, "d" if gone else "u", gone, lsn, moment])
            if pair not in friends or friends[pair][-1][1:] != (gone, since):
                friends.setdefault(pair, []).append((position(lsn), gone, since))
            mentions |= {(animal, moment, "clinic.public.friends") for animal in pair}
        insert(clinic, "friends", pairs, moment)
        insert(clinic, "vaccinations", children, moment)
        insert(clinic, "visits", events, moment)
        clinic.dbt("build" if load == 1 else "run", without="parsed")
    hub = "join vault.hub_patient as hub on hub.hk_patient ="
    rows = clinic.rows(
        "select hub.patient_id, vaccine, v.source_seq, v.is_deleted, dose"
        f" from vault.ma_sat_patient_vaccination_v1 as v {hub} v.hk_animal"
    )
    assert in_order(rows) == in_order([*key, *row] for key, timeline in doses.items() for row in timeline)
    rows = clinic.rows(
        "select nh.id, hub.patient_id, fee, nh.source_seq, nh.load_date"
        f" from vault.nh_link_visit as nh {hub} nh.hk_patient"
    )
    wanted = [[visit[0], visit[1], visit[2], position(visit[5]), visit[6]] for visit in visits.values()]
    assert in_order(rows) == in_order(wanted)
    ends = f"join vault.link_friendship as link using (hk_friendship) {hub} link.hk_one"
    ends += " join vault.hub_patient as other on other.hk_patient = link.hk_other"
    rows = clinic.rows(
        "select hub.patient_id, other.patient_id, v.source_seq, v.is_deleted, v.since"
        f" from vault.sat_friendship_details_v1 as v {ends}"
    )
    assert in_order(rows) == in_order([*pair, *row] for pair, timeline in friends.items() for row in timeline)
    rows = clinic.rows(
        "select hub.patient_id, other.patient_id, v.source_seq, v.is_active"
        f" from vault.eff_sat_friendship_v1 as v {ends}"
    )
    assert in_order(rows) == in_order(
        [*pair, seq, not gone]
        for pair, timeline in friends.items()
        for n, (seq, gone, _) in enumerate(timeline)
        if n == 0 or gone != timeline[n - 1][1]
    )
    rows = clinic.rows(
        f"select hub.patient_id, rts.load_date, rts.record_source from vault.rts_patient as rts {hub} rts.hk_patient"
    )
    assert in_order(rows) == in_order(list(mention) for mention in mentions)
    assert_comments_are_the_descriptions(clinic)


def assert_comments_are_the_descriptions(clinic: Zoo) -> None:
    """Tables, views and all their columns say in Iceberg what the declaration says of them."""
    names = [model.rsplit("/", 1)[1] for model in clinic.models if not model.startswith(("parsed/", "current/"))]
    comments = "select table_name, comment from system.metadata.table_comments where catalog_name = 'lake'"
    found = dict(clinic.rows(comments + " and schema_name = 'vault'"))
    for name in names:
        assert found[name], f"{name} has no comment"
        without = [row[0] for row in clinic.rows(f"describe vault.{name}") if not row[3]]
        assert not without, f"{name}: no comment on {without}"
    assert clinic.rows("describe vault.ma_sat_patient_vaccination")[0][3] == "Hash key of the animal."


def insert(clinic: Zoo, table: str, rows: list[Any], moment: datetime) -> None:
    """Puts versions into a parsed table: its columns, then operation, whether deleted and commit LSN."""
    where = f"{clinic.source}.public.{table}"
    values = ", ".join(
        "(" + ", ".join(map(literal, [*row[:-2], moment, 1, row[-2], 1, where, moment])) + ")" for row in rows
    )
    clinic.rows(f"insert into parsed.parsed_{clinic.source}__{table} values {values}")


TWIN = """
sources:
  - name: twin
    schema: raw_twin
    tables:
      - name: customers
        description: Customers of the shop.
        config: {meta: {raw: {relation: public.customers, key: [number]}, vault: {
          hub: {name: buyer, collision_code: crm}, satellites: {buyer_name: [name]}}}}
        columns: [{name: number, data_type: text}, {name: name, data_type: text}]
      - name: contacts
        description: One row more for some customers of the shop.
        config: {meta: {raw: {relation: public.contacts, key: [customer]}, vault: {
          hub: {name: buyer, extends: true, collision_code: crm}, track_deletes: false,
          satellites: {buyer_contact: [phone]}}}}
        columns: [{name: customer, data_type: text}, {name: phone, data_type: text}]
      - name: tags
        description: Words by which customers are found.
        config: {meta: {raw: {relation: public.tags, key: [word]}, vault: {
          hub: {name: tag, normalize: upper_trim}, satellites: {tag_weight: [weight]}}}}
        columns: [{name: word, data_type: text}, {name: weight, data_type: integer}]
"""
AND_ERP = """
      - name: clients
        description: Customers of the other system, by numbers that mean others.
        config: {meta: {raw: {relation: public.clients, key: [nr]}, vault: {
          hub: {name: buyer, extends: true, collision_code: erp}, satellites: {buyer_credit: [credit]}}}}
        columns: [{name: nr, data_type: integer}, {name: credit, data_type: text}]
      - name: orders
        description: Orders of clients.
        config: {meta: {raw: {relation: public.orders, key: [id]}, vault: {hub: purchase,
          references: {buyer: {columns: [nr], collision_code: erp}}, links: {purchase_buyer: [buyer]}}}}
        columns: [{name: id, data_type: integer}, {name: nr, data_type: integer}]
"""
OWNERS = {
    "customers": ("crm", "sat_buyer_name_v1", "name", "sts_buyer_v1"),
    "contacts": ("crm", "sat_buyer_contact_v1", "phone", None),
    "clients": ("erp", "sat_buyer_credit_v1", "credit", "sts_buyer_twin_clients_v1"),
}

SPELLED = {0: [(1, "new", "r"), (2, "New ", "r"), (3, "old", "r")], 2: [(4, "New ", "d")]}  # by load


@pytest.mark.slow
def test_equal_keys_of_two_systems_stay_two_and_a_table_of_one_system_shares_its_keys(
    settings: Settings, tmp_path: Path
) -> None:
    """The second system comes when the hub is loaded already, without a code for its keys."""
    rng, lsn, blank = random.Random(11), 0, 0
    timelines: dict[str, dict[Any, list[tuple[Any, ...]]]] = {table: {} for table in OWNERS}
    bought: set[tuple[Any, ...]] = set()
    with modelled(settings, tmp_path, "twin", TWIN + AND_ERP) as twin:
        for load, tables in enumerate((["customers", "contacts"], list(OWNERS), list(OWNERS))):
            write_models(twin.project, "twin", TWIN + (AND_ERP if "clients" in tables else ""))
            moment = START + timedelta(days=load)
            for table in tables:
                rows = []
                for _ in range(30):
                    lsn += 1
                    key = rng.choice([1, 2, 3, 4] if table == "clients" else ["1", "2", "3", "", " "])
                    found = timelines[table].setdefault(key, [])
                    gone = bool(found) and not found[-1][1] and rng.random() < 0.3
                    value = None if gone else rng.choice(["a", "b", None])
                    rows.append([key, value, "d" if gone else "u", gone, lsn, moment])
                    blank += table == "customers" and not str(key).strip()
                    if not found or found[-1][1:] != (gone, value):
                        found.append((position(lsn), gone, value))
                insert(twin, table, rows, moment)
            if "clients" in tables:
                orders = [[load * 10 + n, rng.choice([1, 2, 5]), "c", False, lsn + n, moment] for n in range(5)]
                bought |= {(row[0], str(row[1])) for row in orders}
                insert(twin, "orders", orders, moment)
                lsn += 5
            if load in SPELLED:
                words = [[word, None, op, op == "d", nth, moment] for nth, word, op in SPELLED[load]]
                insert(twin, "tags", words, moment)
            twin.dbt("build" if load == 2 else "run", without="parsed")
        assert twin.counted("cdc_vault_keys_are_given_stg_twin__customers") == blank, "blank keys are counted"
        assert twin.counted("cdc_vault_keys_are_given_stg_twin__tags") == 1, "of the two words 'new', one lives"
        keys = {(str(key), OWNERS[table][0]) for table, found in timelines.items() for key in found}
        keys |= {(nr, "erp") for _, nr in bought}
        assert in_order(twin.rows("select number, collision_code from vault.hub_buyer")) == in_order(map(list, keys))
        for table, (code, view, column, status) in OWNERS.items():
            of = "select hub.number, hub.collision_code, v.source_seq, v.is_deleted{} from vault.{} as v"
            of += " join vault.hub_buyer as hub on hub.hk_buyer = v.hk_buyer"
            wanted = [[str(key), code, *row] for key, rows in timelines[table].items() for row in rows]
            assert in_order(twin.rows(of.format(f", v.{column}", view))) == in_order(wanted), view
            if status:
                wanted = [
                    [str(key), code, *row[:2]] for key, rows in timelines[table].items()
                    for n, row in enumerate(rows) if n == 0 or row[1] != rows[n - 1][1]
                ]  # fmt: skip
                assert in_order(twin.rows(of.format("", status))) == in_order(wanted), status
        sold = twin.rows(
            "select purchase.purchase_id, hub.number, hub.collision_code from vault.link_purchase_buyer as link"
            " join vault.hub_purchase as purchase on purchase.hk_purchase = link.hk_purchase"
            " join vault.hub_buyer as hub on hub.hk_buyer = link.hk_buyer"
        )
        assert in_order(sold) == in_order([*one, "erp"] for one in bought)


YARD = """
sources:
  - name: yard
    schema: raw_yard
    tables:
      - name: machines
        description: Machines, each at a site for a role.
        config: {meta: {raw: {relation: public.machines, key: [id]}, vault: {
          hub: machine, references: {site: site_id}, links: {machine_site: [site]}, codes: {machine_kind: kind_code},
          satellites: {siting: {columns: [role], link: machine_site}, machine_details: [kind_code],
            machine_origin: {columns: [made], historized: false}}}}}
        columns: [{name: id, data_type: integer}, {name: site_id, data_type: integer}, {name: role, data_type: text},
          {name: kind_code, data_type: integer}, {name: made, data_type: text}]
      - name: sites
        description: Sites.
        config: {meta: {raw: {relation: public.sites, key: [id]}, vault: {hub: site}}}
        columns: [{name: id, data_type: integer}]
      - name: kinds
        description: Kinds of machines.
        config: {meta: {raw: {relation: public.kinds, key: [code]}, vault: {
          reference_table: machine_kind, satellites: {machine_kind: [label]}}}}
        columns: [{name: code, data_type: text}, {name: label, data_type: text}]
"""
BARN = """
sources:
  - name: barn
    schema: raw_barn
    tables:
      - name: tools
        description: Tools of a source that is declared and not used.
        config: {meta: {raw: {relation: public.tools, key: [id]}, vault: {hub: tool}}}
        columns: [{name: id, data_type: integer}]
"""
LSN = "cast(split_part(v.source_seq, '.', 2) as bigint)"
MACHINES = "parsed.parsed_yard__machines"
SITED = f"""select m.machine_id, s.site_id, {LSN}, v.role from vault.sat_siting_v1 as v
  join vault.link_machine_site as l on l.hk_machine_site = v.hk_machine_site
  join vault.hub_machine as m on m.hk_machine = l.hk_machine left join vault.hub_site as s on s.hk_site = l.hk_site"""
SITED_BY_SOURCE = f"""select id, site_id, _commit_lsn, role from (
    select *, row_number() over w as nth, lag(role) over w as before from {MACHINES} where not _is_deleted
    window w as (partition by id, site_id order by _commit_lsn)
  ) where nth = 1 or role is distinct from before"""
MADE = """select m.machine_id, nh.made, nh.record_source
  from vault.nh_sat_machine_origin as nh join vault.hub_machine as m on m.hk_machine = nh.hk_machine"""
MADE_BY_SOURCE = f"select distinct id, made, _record_source from {MACHINES} where not _is_deleted"
UNKNOWN_KINDS = f"""select count(*) from {MACHINES} where not _is_deleted and kind_code is not null
  and cast(kind_code as varchar) not in (select code from parsed.parsed_yard__kinds where not _is_deleted)"""


@pytest.mark.slow
@pytest.mark.timeout(1500)  # six runs of dbt
def test_what_is_said_of_a_link_what_never_changes_and_codes_are_as_the_source_says_also_after_a_rehash(
    settings: Settings, tmp_path: Path
) -> None:
    """Half of the changes arrive late. Then the machines get a collision code. The rehash is refused to a load, and
    done by its command, without a source that was never loaded."""
    with modelled(settings, tmp_path, "yard", YARD) as yard:
        insert(yard, "kinds", [["1", "crane", "c", False, 1, START], ["2", "lift", "c", False, 2, START]], START)
        (yard.project / "models/business/yard").mkdir(parents=True)
        (yard.project / "models/business/yard/bv_machine.sql").write_text(
            "select hk_machine from {{ ref('hub_machine') }}"
        )
        events = machine_events(random.Random(3))
        for load, batch in enumerate((events[::2], events[1::2])):
            insert(yard, "machines", batch, START + timedelta(days=load))
            yard.dbt("build" if load else "run", without="parsed")
            assert_yard_is_true(yard)
        assert yard.counted("cdc_vault_codes_are_known") == yard.rows(UNKNOWN_KINDS)[0][0] > 0
        write_models(yard.project, "yard", YARD.replace("hub: machine,", "hub: {name: machine, collision_code: old},"))
        yard.dbt("run", without="parsed")
        assert_yard_is_true(yard)
        assert yard.rows("select count(*) from vault.hub_machine") == [[5]], "no key is there as it was, too"
        config = yard.project / "dbt_project.yml"
        config.write_text(config.read_text().replace("vault_hash: md5", "vault_hash: sha256"))
        with pytest.raises(AssertionError, match=r"has keys of another hash function than vars\.vault_hash"):
            yard.dbt("run", without="parsed")
        assert_yard_is_true(yard)
        write_models(yard.project, "barn", BARN)
        left_out = rebuild_vault(settings.model_copy(update={"project_dir": yard.project.parent}))
        assert "parsed_barn__tools" in left_out and not [name for name in left_out if "yard" in name]
        for table in ("hub_machine", "bv_machine"):  # also what has as many rows as before
            assert yard.rows(f"select distinct length(hk_machine) from vault.{table}") == [[64]], table
        assert_yard_is_true(yard)
        seen = yard.snapshots()
        yard.dbt("run", without="parsed")
        assert yard.snapshots() == seen, "a load after it finds nothing to do"
        yard.rows("drop table vault.bv_machine")


def machine_events(rng: random.Random) -> list[list[Any]]:
    """Changes of machines in source order; they move, come back, and change their role where they are."""
    alive: dict[int, tuple[Any, ...]] = {}
    events = []
    for lsn in range(10, 130):
        key = rng.randint(1, 5)
        gone = key in alive and rng.random() < 0.15
        site, role = alive.get(key, (None, None))
        if gone:
            del alive[key]
        else:
            site = rng.choice([1, 2, 3, None]) if rng.random() < 0.5 else site
            role = rng.choice(["spare", "main", None]) if rng.random() < 0.6 else role
            alive[key] = (site, role)
        values = [None] * 4 if gone else [site, role, rng.choice([1, 2, 9, None]), f"by maker {key}"]
        events.append([key, *values, "d" if gone else "u", gone, lsn, START + timedelta(minutes=lsn)])
    return events


def assert_yard_is_true(yard: Zoo) -> None:
    """The vault against SQL over the source's rows."""
    assert in_order(yard.rows(SITED)) == in_order(yard.rows(SITED_BY_SOURCE))
    assert in_order(yard.rows(MADE)) == in_order(yard.rows(MADE_BY_SOURCE))
    for satellite, key in (("sat_siting", "hk_machine_site"), ("nh_sat_machine_origin", "hk_machine")):
        ghosts = yard.rows(
            f"select substr({key}, 1, 1) from vault.{satellite} where record_source = 'ghost' order by 1"
        )
        assert ghosts == [["0"], ["f"]], satellite


def position(lsn: int) -> str:
    """The vault's sortable position."""
    return source_seq({"_epoch": 1, "_commit_lsn": lsn, "_seq": 1})
