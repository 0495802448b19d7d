{#-
  A table that is only ever appended to. Against dbt's `incremental` with `append` it makes no temporary relation (a
  killed run leaves nothing behind), asks Trino two to five things fewer per model, and can do four things more:

  - a model whose header says `new_data: false` is not run at all, so that a rerun costs nothing and makes no snapshot;
  - one that is made `anew` is the whole table: what is there is replaced in one step, and readers see the one or the
    other. Of the table itself it reads the rows that it keeps. The moment is kept in the table's properties, by the same statement. So it
    is once more where rows that were there are `revised`: appended tables that are loaded from it act on it (`load_plan`).
    A full refresh replaces a table so, too, and leaves it as it is where there is nothing to make it of.
  - which columns its loads have `left_out` is written to the table's properties before the insert;
  - what it is to `remember` is written to the table's properties after the last insert, with the snapshot that it is
    true of. A model keeps its watermark there: it lives and dies with the table, and setting it makes no snapshot.

  The model says so in its header (`load_header`). The columns are those of the header, else those of the model's YAML when
  all carry a data_type; then new ones are added and types widened. A model with neither keeps the columns of its first
  query. Where an insert reads the table itself, it is there already, and in a full refresh emptied before.
-#}
{% materialization append_only, adapter='trino' %}
  {%- set existing = cdc_vault.existing_relation(this) -%}
  {%- set relation = this.incorporate(type='table') -%}
  {%- set header = cdc_vault.load_header_of(sql) -%}
  {%- set is_there = existing is not none and existing.is_table -%}
  {%- set refreshed = is_there and should_full_refresh() and header.new_data -%}
  {%- set anew = is_there and (header.anew or (refreshed and this | string not in sql)) -%}
  {%- set fresh = not is_there or (refreshed and not anew) -%}
  {%- set columns = cdc_vault.described_columns(header.columns) -%}
  {%- set notes = [(cdc_vault.left_out_property(), header.left_out)] if header.get("left_out") else [] -%}

  {{ run_hooks(pre_hooks) }}
  {%- if fresh -%}
    {%- if existing is not none and not existing.is_table -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
    {%- do run_query(cdc_vault.create_append_only(relation, columns, sql, notes=notes)) -%}
    {%- if not columns -%}{%- do cdc_vault.comment_columns(relation) -%}{%- endif -%}
  {%- elif columns and not anew and not should_full_refresh() -%}
    {%- do cdc_vault.fit_columns(existing, columns) -%}
  {%- endif -%}
  {%- if notes and not fresh and not anew -%}{%- do run_query(cdc_vault.set_properties(relation, notes)) -%}{%- endif -%}
  {%- if anew -%}
    {%- call statement("main") -%}
      {{ cdc_vault.create_append_only(relation, [], cdc_vault.cast_columns(columns, sql) if columns else sql, with_data=true, notes=cdc_vault.made_anew_now(header.get("revised")) + notes) }}
    {%- endcall -%}
    {%- do cdc_vault.comment_columns(relation) -%}
  {%- elif not header.new_data -%}
    {%- call noop_statement("main", "no new data", "no new data", 0) -%}{%- endcall -%}
  {%- else -%}
    {%- set checks = none if fresh else header.get("checks") if "checks" in header else cdc_vault.batch_checks() -%}
    {%- set batch = cdc_vault.refusing_batch(relation, checks, sql) -%}
    {%- call statement("main") -%}{{ cdc_vault.insert_columns(relation, columns or cdc_vault.table_columns(relation), batch) }}{%- endcall -%}
  {%- endif -%}
  {%- if header.remember -%}{%- do cdc_vault.remember_load(relation, header, load_result("main").response.query_id) -%}{%- endif -%}
  {{ run_hooks(post_hooks) }}
  {{ return({"relations": [relation]}) }}
{% endmaterialization %}

{#-
  What a model that plans its load says to the materialization, to which dbt hands nothing of it but SQL: its first line is
  a comment of JSON, written and read here alone. JSON escapes line breaks, so no name and no text can begin such a line.
-#}
{% macro load_header(new_data=true, anew=false, columns=none, remember={}, base=none, more={}) -%}
  {%- set header = {"new_data": new_data, "anew": anew, "columns": columns, "remember": remember, "base": base} -%}
-- lakehouse: {{ tojson(dict(header, **more)) }}
{%- endmacro %}

{% macro load_header_of(sql) %}
  {%- set first = sql.strip().split("\n")[0] -%}
  {%- set silent = {"new_data": true, "anew": false, "columns": none, "remember": {}, "base": none} -%}
  {{ return(fromjson(first[13:]) if first.startswith("-- lakehouse: {") else silent) }}
{% endmacro %}

{#- Name, type and description of each column of a header or, without, of the model's YAML. -#}
{% macro described_columns(stated) %}
  {%- set typed = model.columns.values() | selectattr("data_type") | list -%}
  {%- set from_yaml = typed if typed | length == model.columns | length else [] -%}
  {%- set columns = [] -%}
  {%- for column in (from_yaml if stated is none else stated) -%}
    {%- set documented = model.columns.get(column.name, {}) -%}
    {%- do columns.append({
      "name": column.name, "type": column.type or column.data_type, "description": documented.get("description", ""),
    }) -%}
  {%- endfor -%}
  {{ return(columns) }}
{% endmacro %}

{% macro create_append_only(relation, columns, sql, with_data=false, notes=[]) %}
  {%- set properties = config.get("properties", {}) -%}
  create or replace table {{ relation }}
  {%- if columns %} (
    {%- for column in columns %}
    {{ cdc_vault.quoted(column.name) }} {{ column.type }} {{ cdc_vault.comment_clause(column.description) }}{{ "," if not loop.last }}
    {%- endfor %}
  )
  {%- endif %}
  {{ cdc_vault.comment_clause(model.description) }}
  with (
    {%- for name, value in properties.items() %}
    {{ name }} = {{ value }},
    {%- endfor %}
    extra_properties = {{ cdc_vault.table_properties(notes) }}
  )
  {%- if not columns %}
  as {{ sql }}
  {{ "with no data" if not with_data }}
  {%- endif %}
{% endmacro %}

{#- When a table was made anew, by Trino's clock: after each snapshot that it replaces, and before its own. -#}
{% macro made_anew_property() -%}
  lakehouse.made-anew-at
{%- endmacro %}

{% macro revised_property() -%}
  lakehouse.revised-at
{%- endmacro %}

{% macro made_anew_now(revised) %}
  {%- set now = run_query("select cast(at_timezone(current_timestamp(6), 'UTC') as varchar)").rows[0][0] -%}
  {{ return([(cdc_vault.made_anew_property(), now)] + ([(cdc_vault.revised_property(), now)] if revised else [])) }}
{% endmacro %}

{#- Old metadata files leave the log as new ones come; orphan removal deletes them, once no backup of the catalog names one. -#}
{% macro table_properties(more=[]) %}
  {%- set properties = [("write.metadata.delete-after-commit.enabled", "false"), ("write.metadata.previous-versions-max", "20")] + more -%}
  {{ cdc_vault.map_of(properties) }}
{%- endmacro %}

{#-
  Writes down what the header wants remembered, each with the snapshot that it is true of. Who runs dbt every few seconds
  sets `LAKEHOUSE_REMEMBERS`, reads the headers of the models that have run, and does the same for all tables at once.
-#}
{% macro remember_load(relation, header, query_id) %}
  {%- set by_caller, remembered = env_var("LAKEHOUSE_REMEMBERS", ""), [] -%}
  {%- set snapshot = none if by_caller else cdc_vault.loaded_snapshot(relation, header.base, query_id) -%}
  {%- if snapshot -%}
    {%- for name, value in header.remember.items() -%}{%- do remembered.append((name, value ~ "|" ~ snapshot)) -%}{%- endfor -%}
    {%- do run_query(cdc_vault.set_properties(relation, remembered)) -%}
  {%- endif -%}
{% endmacro %}

{% macro set_properties(relation, properties) %}
  alter table {{ relation }} set properties extra_properties = {{ cdc_vault.map_of(properties) }}
{%- endmacro %}

{% macro map_of(pairs) -%}
  map(array[{{ cdc_vault.sql_texts(pairs | map(attribute=0)) }}], array[{{ cdc_vault.sql_texts(pairs | map(attribute=1)) }}])
{%- endmacro %}

{#-
  Adds the rows of a query. Trino lets two INSERTs commit whatever they have read, so two loads at once would both add what
  neither found. A MERGE is checked when it commits: if anybody has added a data file since it began, it fails. What a
  compaction has rewritten does not count. There is no lock to wait for, and none that a killed load could leave.
-#}
{% macro insert_columns(relation, columns, query) %}
  {%- set names = cdc_vault.quoted_names(columns) %}
  merge into {{ relation }} using (
    {{ cdc_vault.cast_columns(columns, query) }}
  ) as _lh_load
  on false
  when not matched then insert ({{ names }}) values ({% for column in columns %}_lh_load.{{ cdc_vault.quoted(column.name) }}{{ ", " if not loop.last }}{% endfor %})
{%- endmacro %}

{#- Hook on-run-end: of each table whose load lost to another one a line that says so, beside what Trino says. -#}
{% macro tell_conflicts(results) %}
  {%- for result in results if execute and cdc_vault.is_conflict(result.message or "") -%}
    {%- do log(result.node.schema ~ "." ~ result.node.alias ~ ": " ~ cdc_vault.conflict_text(), info=true) -%}
  {%- endfor -%}
{% endmacro %}

{#- As in orchestration/runs/failures.py, which says the same of a run. -#}
{% macro is_conflict(message) %}
  {{ return("ICEBERG_COMMIT_ERROR" in message and "conflicting" in message) }}
{% endmacro %}

{% macro conflict_text() -%}
  another load added rows to the table while this one ran, so this one added none to it: wait until the other has ended, then run this again
{%- endmacro %}

{% macro cast_columns(columns, query) %}
  select
    {%- for column in columns %}
    {%- set name = cdc_vault.quoted(column.name) %}
    cast({{ name }} as {{ column.type }}) as {{ name }}{{ "," if not loop.last }}
    {%- endfor %}
  from (
    {{ query }}
  )
{%- endmacro %}

{#- Adds columns that are new, widens those whose type has grown (what is not a widening is refused), and keeps comments. -#}
{% macro fit_columns(relation, columns) %}
  {%- set there = {} -%}
  {%- for column in cdc_vault.table_columns(relation) -%}{%- do there.update({column.name: column}) -%}{%- endfor -%}
  {%- for column in columns -%}
    {%- set name = cdc_vault.quoted(column.name) -%}
    {%- if column.name | lower not in there -%}
      {%- do run_query("alter table " ~ relation ~ " add column " ~ name ~ " " ~ column.type ~ " " ~ cdc_vault.comment_clause(column.description)) -%}
    {%- else -%}
      {%- if not cdc_vault.can_become(there[column.name | lower].type, column.type) -%}
        {{ exceptions.raise_compiler_error(
          "column " ~ column.name ~ " is " ~ there[column.name | lower].type ~ " in " ~ relation ~ " and declared as " ~ column.type
          ~ ", which it cannot become: " ~ cdc_vault.how_to_build_anew()
        ) }}
      {%- elif there[column.name | lower].type != column.type | replace(", ", ",") -%}
        {%- do run_query("alter table " ~ relation ~ " alter column " ~ name ~ " set data type " ~ column.type) -%}
      {%- endif -%}
      {%- do cdc_vault.comment_column(relation, there[column.name | lower], column.description) -%}
    {%- endif -%}
  {%- endfor -%}
{% endmacro %}

{#- Of the former type only raw and the table itself still have values. -#}
{% macro how_to_build_anew() -%}
  build the table anew, and what is below it, with `dbt build --full-refresh --select '{{ model.name }}+'`. Where the source has changed the column's type, rows from before have NULL in it then: raw alone keeps their values, as `<column>__<type>`
{%- endmacro %}

{#-
  Name, type and comment of each column that is there. `LAKEHOUSE_TABLE_COLUMNS` (by table, as JSON) gives them to who has
  looked already, for tables that nobody has changed `since`.
-#}
{% macro table_columns(relation, since=false) %}
  {%- set given = {} if since else fromjson(env_var("LAKEHOUSE_TABLE_COLUMNS", "{}")) -%}
  {%- set columns = [] -%}
  {%- for row in given.get(relation.schema ~ "." ~ relation.identifier) or run_query("describe " ~ relation).rows -%}
    {%- do columns.append({"name": row[0], "type": row[1], "comment": row[-1] or ""}) -%}
  {%- endfor -%}
  {{ return(columns) }}
{% endmacro %}

{#- Writes the descriptions of the model's columns where the relation has others. A comment makes no snapshot. -#}
{% macro comment_columns(relation) %}
  {%- for column in cdc_vault.table_columns(relation, since=true) -%}
    {%- do cdc_vault.comment_column(relation, column, model.columns.get(column.name, {}).get("description", "")) -%}
  {%- endfor -%}
{% endmacro %}

{% macro comment_column(relation, there, description) %}
  {%- if description and description | trim != there.comment -%}
    {%- do run_query("comment on column " ~ relation ~ "." ~ cdc_vault.quoted(there.name) ~ " is " ~ cdc_vault.sql_text(description | trim)) -%}
  {%- endif -%}
{% endmacro %}

{% macro comment_clause(text) %}
  {%- if text %}comment {{ cdc_vault.sql_text(text | trim) }}{% endif -%}
{% endmacro %}
