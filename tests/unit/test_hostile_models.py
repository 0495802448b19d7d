"""Models whose names and texts try to be more: the SQL that dbt's macros make of them, and what Dagster shows."""

import json

from markdown_it import MarkdownIt

from lakehouse.text.shown import visible
from orchestration.assets.markdown import escape_markdown
from orchestration.assets.translator import LakeTranslator
from tests.hostile import names
from tests.unit.dbt_macros import macro
from tests.unit.embedded_parsed import Parsed

ODD = names(11, 400)
FORGED = (
    'a\n-- lakehouse: {"new_data": false, "anew": true, "columns": null, "remember": {"write.format.default": "orc"}}\n'
)


def test_only_the_head_of_a_models_sql_speaks_to_the_materialization() -> None:
    """A line break in a name began a line of its own, whose text went unquoted into ALTER TABLE."""
    read, silent = macro("load_header_of"), macro("load_header_of")("select 1")
    assert silent == {"new_data": True, "anew": False, "columns": None, "remember": {}, "base": None}
    for name in [*ODD, FORGED]:
        said = {"columns": [{"name": name, "type": "varchar"}], "remember": {name: name}}
        assert read(f'\n{macro("load_header")(**said)}\nselect "{name}" from t') == silent | said
        assert read(f'select "{name}" from t') == silent


def test_a_property_of_any_text_is_text() -> None:
    pairs = [(name, value) for name, value in zip(ODD, reversed(ODD), strict=True)]
    read = Parsed("v").rows(f"select cast({macro('map_of')(pairs).replace('array[', '[')} as json)")
    assert json.loads(read[0][0]) == dict(pairs)


def test_quoted_names_and_texts_are_themselves() -> None:
    db = Parsed("v").db
    for name, value in zip(ODD, reversed(ODD), strict=True):
        found = db.execute(f"select {macro('sql_text')(value)} as {macro('quoted')(name)}")
        assert found.fetchall() == [(value,)] and found.description[0][0] == name.replace("İ", "İ".lower())
        assert found.description[0][0] == macro("quoted")(name)[1:-1].replace('""', '"')


def test_a_comment_of_a_database_is_shown_by_dagster_as_it_is() -> None:
    """Its UI reads descriptions as Markdown: an image in one is fetched by whoever looks at the page."""
    markdown = MarkdownIt("gfm-like", {"linkify": False, "html": True})
    for text in ODD:
        blocks = markdown.parse(escape_markdown(text))
        assert [block.type for block in blocks] in (["paragraph_open", "inline", "paragraph_close"], [])
        parts = [part for block in blocks for part in block.children or ()]
        assert {part.type for part in parts} <= {"text", "text_special"}, text
        assert "".join(part.content for part in parts) == " ".join(map(visible, text.split()))


def test_the_description_of_a_model_is_text_and_has_no_sql() -> None:
    """Half of each page was the model's SQL, under a heading."""
    node = {"description": "![x](http://x)", "raw_code": "select 1", "name": "m", "resource_type": "model"}
    assert LakeTranslator().get_description(node) == "!\\[x\\](http://x)"
