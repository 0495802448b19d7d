"""What is wrong in a YAML file is one line with its place and what to write, before dbt reads it."""

import dataclasses
import fcntl
from pathlib import Path
from string import Template

import pytest

from lakehouse.declarations.dbt import manifest
from lakehouse.declarations.dbt.folders import project_folders
from lakehouse.declarations.dbt.manifest import load_manifest, project_fingerprint
from lakehouse.declarations.dbt.yaml_files import check_yaml, mistakes
from lakehouse.declarations.dbt.yaml_keys import COLUMN_KEYS, CONFIG_KEYS, PLACES, SOURCE_KEYS, TABLE_KEYS
from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings

SHOP = """\
sources:
  - name: shop
    schema: raw_shop
    tables:
      - name: orders
        config: {meta: {raw: {relation: public.orders, key: [id]}}}
        columns:
          - {name: id, data_type: bigint, data_tests: [unique]}
          - {name: note, data_type: text}
"""
BROKEN = {
    "key: [id\nother: 1\n": (2, "close the list with `]`"),
    "a:\n\tb: 1\n": (2, "indent with spaces"),
    "description: Orders: all of them\n": (1, "quote a value with a colon and a space"),
    "a: 'text\nb: 1\n": (3, "close the quote"),
    "- a\nb: 1\n": (2, "align what belongs together"),
    "a: @x\n": (1, "put the value into quotes"),
    "a: {b: 1\nc: 2\n": (2, "close the braces with `}`"),
    "a: 1\n---\nb: 1\n": (2, "take out the line `---`"),
    "a: 1\nb: \x07\n": (2, "take out the control character"),
}


@pytest.mark.parametrize("text", BROKEN)
def test_broken_yaml_has_its_line_and_a_remedy(text: str) -> None:
    line, remedy = BROKEN[text]
    [(found, says)] = mistakes(text.encode())
    assert found == line and says.startswith("this is no YAML: ") and says.endswith(remedy), says


def test_a_file_that_is_nested_too_deeply_is_told_by_its_name(tmp_path: Path) -> None:
    """The error of Python's stack said nothing of it."""
    (tmp_path / "dbt_project.yml").write_text("a: " + "[" * 5000 + "]" * 5000)
    with pytest.raises(LakehouseError, match=r"/dbt_project\.yml:1: lists and mappings are nested too deeply"):
        check_yaml(tmp_path)


def test_what_is_no_utf_8_is_told(tmp_path: Path) -> None:
    assert list(mistakes(b"a: 1\nb: \xff\n")) == [(2, "this is no YAML: invalid start byte: write the file in UTF-8")]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("schema: raw_shop", "schema: raw_shop\n    schema: raw_x", 4, "key `schema` is there twice, first on line 3"),
        ("key: [id]", "key: [id], key: [note]", 6, "key `key` is there twice, first on line 6: keep one"),
        ("name: note", "name: id", 9, "'id' is twice among `columns`, first on line 8: keep one"),
        ("data_type: text", "data_typ: text", 9, "columns: unknown key `data_typ`: did you mean `data_type`?"),
        (
            "schema: raw_shop", "schema: raw_shop\n    config: {meta: {raw: {exclude: [note]}}}", 4,
            "meta.raw: nothing reads it, as each table of the source has a `raw` of its own",
        ),
        ("schema: raw_shop", "schema: raw_shop\n    meta: {raw: {exclude: [note]}}", 4, "meta.raw: nothing reads it"),
        ("{name: note, data_type: text}", "note", 9, "an entry of `columns` has no name: write `- name: …`"),
        ("    tables:\n", "    tables:\n      orders:\n", 5, "`tables` is a list: write `- name: …` for each"),
        ("sources:\n  - name", "sources:\n    name", 2, "`sources` is a list: write `- name: …` for each"),
    ],
)  # fmt: skip
def test_what_dbt_takes_without_a_word_is_refused(old: str, new: str, line: int, says: str) -> None:
    assert list(mistakes(SHOP.encode())) == [] and old in SHOP
    found = list(mistakes(SHOP.replace(old, new, 1).encode()))
    assert found[0][0] == line and found[0][1].startswith(says), found


VAULT = "vault: {hub: order, satellites: {o: {columns: [note], personal: true}}}"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("config: {meta", f"config: {{{VAULT}, meta", 6, "config: nothing reads `vault` here: put it into"),
        ("config: {meta", f"{VAULT}\n        config: {{meta", 6, "tables: nothing reads `vault` here: put it into"),
        ("tables:", "mirror: none\n    tables:", 4, "sources: nothing reads `mirror` here: put it into `config.meta`"),
        ("tables:", "config: {owners: [team:x]}\n    tables:", 4, "config: nothing reads `owners` here"),
        ("meta: {raw: {relation: public.orders, key: [id]}}", "raw: {relation: public.orders}", 6, "config: nothing"),
        ("config: {meta", "personal: [note]\n        config: {meta", 6, "tables: nothing reads `personal` here"),
        ("config: {meta", "config: {personal: [note], meta", 6, "config: nothing reads `personal` here: put it into"),
        ("config: {meta", "maintainance: {}\n        config: {meta", 6, "tables: unknown key `maintainance`: did you"),
        ("config: {meta", "config: {+meta", 6, "config: unknown key `+meta`: did you mean `meta`?"),
        ("config: {meta", "confg: {meta", 6, "tables: unknown key `confg`: did you mean `config`?"),
        ("schema:", "shema:", 3, "sources: unknown key `shema`: did you mean `schema`?"),
        ("type: text", "type: text, meta: {personal: true}", 9, "columns: nothing reads `personal` in the meta of"),
        ("type: text", "type: text, config: {meta: {mask: sha256}}", 9, "columns: nothing reads `mask` in the meta of"),
    ],
)  # fmt: skip
def test_a_key_that_nothing_reads_where_it_is_is_refused(old: str, new: str, line: int, says: str) -> None:
    """A `vault` beside `meta` was ignored, and with it that columns are personal data."""
    assert old in SHOP
    found = list(mistakes(SHOP.replace(old, new, 1).encode()))
    assert found[0][0] == line and found[0][1].startswith(says), found


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (SHOP.replace("raw: {", "raw: {freshness_minutes: 1:30, "), 6, "YAML reads 1:30 as 90: put it into quotes, or"),
        (SHOP.replace("tables:", "meta: {flush: {interval_minutes: 0_10}}\n    tables:"), 4, "YAML reads 0_10 as 8: "),
        ("vars:\n  maintenance: {groups: {a: {budget_minutes: 2:00}}}\n", 2, "YAML reads 2:00 as 120: "),
        ("vars: {pins: {month_end: {keep_days: 010}}}\n", 1, "YAML reads 010 as 8: put it into quotes, or write the"),
        ("models:\n  lake:\n    +meta: {freshness_minutes: 1:30}\n", 3, "YAML reads 1:30 as 90: "),
        ("models:\n  - {name: m, config: {meta: {built_by: {from_rows: 010}}}}\n", 2, "YAML reads 010 as 8: "),
    ],
)  # fmt: skip
def test_a_number_that_yaml_reads_as_another_one_is_refused(text: str, line: int, says: str) -> None:
    found = list(mistakes(text.encode()))
    assert found[0][0] == line and found[0][1].startswith(says), found


def test_numbers_that_are_what_they_say_and_those_of_others_are_taken() -> None:
    ours = "vars: {maintenance: {hours: 0, z: 00, a: 0.5, b: 1_000, c: 10, d: 1e3, window: '01:00', cron: 5 1 * * *}}\n"
    others = "vars: {starts: 1:30}\nmodels:\n  - {name: m, meta: {opens: 08:30, at: 010, mode: 0755}}\n"
    assert list(mistakes((ours + others.partition("\n")[2]).encode())) == list(mistakes(others.encode())) == []


def test_where_a_misplaced_key_belongs_is_said() -> None:
    [(_, told)] = mistakes(SHOP.replace("config: {meta", "mask: {note: sha256}\n        config: {meta").encode())
    assert told == "tables: nothing reads `mask` here: put it into `config.meta.raw`"
    [(_, told)] = mistakes(SHOP.replace("type: text", "type: text, meta: {personal: true}").encode())
    assert told.endswith("in the meta of a column: name the column in `config.meta.raw.personal` of the table")


@pytest.mark.parametrize(
    ("raw", "meta", "passes"),
    [
        ("exclude: [note]", "exclude: true", True),
        ("mask: {note: sha256}", "mask: sha256", True),
        ("mask: {note: sha256}", "personal: true", False),
        ("exclude: [id]", "exclude: true", False),
    ],
)
def test_what_the_table_says_of_a_column_may_stand_there_as_well(raw: str, meta: str, passes: bool) -> None:
    text = SHOP.replace("key: [id]", f"key: [id], {raw}").replace("type: text", f"type: text, meta: {{{meta}}}")
    assert (list(mistakes(text.encode())) == []) is passes


def test_a_source_of_another_tool_that_is_marked_raw_is_left_alone() -> None:
    other = "sources:\n  - name: stripe\n    meta: {raw: true}\n    mirror: none\n    tables: [{name: charges}]\n"
    assert list(mistakes(other.encode())) == []


def test_keys_of_ones_own_and_sources_that_are_not_of_the_lake_are_left_alone() -> None:
    own = SHOP.replace("config: {meta", "config: {team_of_mine: x, tags: [y], meta").replace(
        "type: text", "type: text, meta: {unit: EUR}"
    )
    other = own.replace("raw_shop", "archive").replace("raw: {relation: public.orders, key: [id]}", "format: parquet")
    other = other.replace("team_of_mine: x", "key: id, owners: [x]")
    assert list(mistakes(own.encode())) == [] and list(mistakes(other.encode())) == []


def test_what_dbt_knows_of_a_source_is_what_dbt_has() -> None:
    """Read from its code, as it refuses nothing."""
    import dbt.cli.main  # noqa: F401  # others of its modules import one another in no other order
    from dbt.artifacts.resources.v1.source_definition import SourceConfig
    from dbt.contracts.graph.unparsed import UnparsedColumn, UnparsedSourceDefinition, UnparsedSourceTableDefinition

    known = [
        (UnparsedSourceDefinition, SOURCE_KEYS), (UnparsedSourceTableDefinition, TABLE_KEYS),
        (UnparsedColumn, COLUMN_KEYS), (SourceConfig, CONFIG_KEYS),
    ]  # fmt: skip
    for entry, keys in known:
        fields = {field.name for field in dataclasses.fields(entry)}
        inner = {"_extra", "loaded_at_field_present", "unrendered_database", "unrendered_schema"}
        assert fields - inner - set(keys) == set(), entry
    assert not {*SOURCE_KEYS, *TABLE_KEYS, *CONFIG_KEYS} & PLACES.keys()


def test_a_raw_of_the_source_that_a_table_inherits_or_merges_in_is_read() -> None:
    shared = SHOP.replace("schema: raw_shop", "schema: raw_shop\n    config: {meta: {raw: &raw {exclude: [note]}}}")
    assert list(mistakes(shared.replace("raw: {relation", "raw: {<<: *raw, relation").encode())) == []
    assert list(mistakes(shared.replace("raw: {relation", "raw: {<<: [*raw], relation").encode())) == []
    assert list(mistakes((shared + "      - name: stores\n").encode())) == []


def test_keys_of_a_mapping_that_is_merged_in_may_be_given_again() -> None:
    assert list(mistakes(b"a: &common {x: 1}\nb:\n  <<: *common\n  x: 2\nc: &self [*self]\n")) == []


def test_a_column_that_is_merged_in_has_the_name_and_the_mistakes_it_has_there() -> None:
    shared = "x: &id {name: id, data_type: bigint}\n" + SHOP.replace("{name: id,", "{<<: *id,")
    assert list(mistakes(shared.encode())) == []
    twice = list(mistakes(shared.replace("{name: note,", "{<<: [*id],").encode()))
    assert twice == [(10, "'id' is twice among `columns`, first on line 9: keep one")]
    [(line, _)] = mistakes(shared.replace("data_type: bigint}", "type: bigint}", 1).encode())
    assert line == 1


def test_the_first_mistake_of_a_project_is_named_with_its_file_before_dbt_reads_it(tmp_path: Path) -> None:
    project = tmp_path / "dbt_project"
    (project / "models" / "sources").mkdir(parents=True)
    (project / "dbt_project.yml").write_text("name: lake\nname: lake\n")
    (project / "models" / "sources" / "shop.yml").write_text(SHOP.replace("data_type", "type"))
    settings = Settings(home=tmp_path / "home", project_dir=tmp_path)
    with pytest.raises(LakehouseError) as refused:
        load_manifest(settings)
    assert str(refused.value) == (
        "dbt_project/dbt_project.yml:2: key `name` is there twice, first on line 1: keep one, or put both into one "
        "(and 2 more)"
    )


def test_no_other_process_writes_a_manifest_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one, with other variables, parsed the project anew for itself: each read whichever was there last."""
    (tmp_path / "dbt_project").mkdir()
    (tmp_path / "dbt_project" / "dbt_project.yml").write_text("name: lake\n")
    settings = Settings(home=tmp_path / "home", project_dir=tmp_path)

    def parse(_: Settings, target_dir: Path) -> Path:
        (made := target_dir.with_name("made.json")).write_text("{}")
        return made

    def read(path: Path) -> str:
        if path.name == "manifest.json":
            with (path.parent / "lock").open("w") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return '{"read": "locked"}'
        return path.read_bytes().decode()

    monkeypatch.setattr(manifest, "_parse", parse)
    monkeypatch.setattr(Path, "read_text", read)
    assert load_manifest(settings) == {"read": "locked"}


@pytest.mark.parametrize("kind", ["models", "snapshots", "seeds"])
@pytest.mark.parametrize(
    ("entry", "where"),
    [("personal: [label]", None), ("config: {personal: [label]}", "config"), ("built_by: {key: hk_store}", None)],
)
def test_what_a_model_says_beside_its_meta_is_refused(kind: str, entry: str, where: str | None) -> None:
    [(line, text)] = mistakes(f"{kind}:\n  - name: report\n    {entry}\n".encode())
    key = "built_by" if "built_by" in entry else "personal"
    assert (line, text) == (3, f"{where or kind}: nothing reads `{key}` here: put it into `config.meta`")


def test_keys_of_dbt_are_left_to_models() -> None:
    stated = "models:\n  - name: report\n    access: private\n    config: {meta: {personal: [label]}, access: public}\n"
    assert (
        list(mistakes(stated.encode())) == list(mistakes(b"models:\n  shop:\n    +meta: {personal: [label]}\n")) == []
    )


def test_files_are_looked_for_wherever_dbt_reads_some(tmp_path: Path) -> None:
    """A snapshot of dbt that was added, or a model in a folder of one's own, was not seen: nothing was parsed again."""
    project = tmp_path / "dbt_project"
    (project / "models").mkdir(parents=True)
    settings = Settings(home=tmp_path / "home", project_dir=tmp_path)

    def is_seen(file: str) -> bool:
        before = project_fingerprint(settings)
        (project / file).parent.mkdir(exist_ok=True)
        (project / file).write_text("a: 1\na: 2\n")
        try:
            with pytest.raises(LakehouseError, match=file):
                check_yaml(project)
            return project_fingerprint(settings) != before
        finally:
            (project / file).unlink()

    assert all(is_seen(f"{folder}/one.yml") for folder in ("models", "macros", "tests", "seeds", "snapshots"))
    stated = "model-paths: [models, ours]\nsnapshot-paths: [taken]\ntest-paths:\ndocs-paths: [docs]\n"
    (project / "dbt_project.yml").write_text(stated)
    assert all(is_seen(f"{folder}/one.yml") for folder in ("models", "ours", "taken", "tests", "docs"))
    (project / "dbt_project.yml").write_text("model-paths: [\n")
    assert "models" in project_folders(project), "whoever reads it says what is wrong"


def test_the_files_of_this_project_have_none() -> None:
    root = Path(__file__).parents[2]
    check_yaml(root / "dbt_project")
    check_yaml(root / "lakehouse_project" / "template" / "dbt_project")
    bank = (root / "lakehouse_samples" / "bank" / "debezium.yml").read_text()
    assert list(mistakes(Template(bank).substitute(source="bank", prefix="bank").encode())) == []
