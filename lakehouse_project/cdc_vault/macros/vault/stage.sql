{#-
  A stage: a parsed table with everything the vault needs beside its columns.

  hashed_columns: name → list of columns (a key, positional), or
    {columns: […], normalize: upper_trim, blank: unknown} (a key), or {is_hashdiff: true, columns: […]} (sorted, NULLs
    left out). '!text' among the columns of a key is a constant: a business key collision code. A list among them is a
    reference of several columns: where one is NULL it refers to nothing, and all of them count as NULL.
    {column: name, type: text} is a column that names a key of that type in Postgres, and is hashed as one.
    {keys: [hk_a, hk_b], columns: […]} is the key of a link of such keys and columns: as its parts are by their rules, so
    that one combination of them is one link.
  derived_columns: name → a parsed column under another name (a business key that tables spell differently), or
    an SQL expression that is taken as text, or '!text' for a constant.

  What it hashes, and of what columns, is in its `meta`: a table of the vault whose hashes are made of something else now is
  built anew.

  Before the first load of its table it has no rows, of the types that it will have: a hub that other sources share with it is loaded
  from these (`is_awaited`).
-#}
{% macro stage(source_model, hashed_columns={}, derived_columns={}) -%}
  {%- set keys, hashdiffs = {}, {} -%}
  {%- for name, spec in hashed_columns.items() -%}
    {%- do (hashdiffs if spec is mapping and spec.is_hashdiff else keys).update({name: spec}) -%}
  {%- endfor -%}
  {{- config(meta={"hashed_keys": keys, "hashdiffs": hashdiffs, "source_model": source_model, "derived_columns": derived_columns}) -}}
  {%- set parsed = ref(source_model) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
    {%- set columns = cdc_vault.stage_columns(source_model, derived_columns) -%}
    {%- do cdc_vault.check_names(source_model, columns.values() | list, [
      "is_deleted", "load_date", "applied_date", "source_seq", "record_source",
    ] + hashed_columns | list) -%}
    {%- set handed = cdc_vault.is_handed("_lh_parsed_" ~ source_model) -%}
    {%- set awaited = not handed and cdc_vault.is_awaited(parsed, this) -%}
    {%- if handed -%}
{{ cdc_vault.load_header(columns=cdc_vault.columns_of_stage(columns, hashed_columns)) ~ "\n" }}
    {%- endif -%}
    select
      {%- for column in columns.values() %}
      {{ cdc_vault.quoted(column.name) }},
      {%- endfor %}
      {%- for name, spec in hashed_columns.items() %}
      {{ cdc_vault.hashed_column(name, spec, columns, hashed_columns) }} as {{ cdc_vault.spelled(name)[0] }},
      {%- endfor %}
      is_deleted,
      load_date,
      applied_date,
      source_seq,
      record_source
    from (
      select
        {%- for column in columns.values() if column.name not in derived_columns %}
        {{ cdc_vault.quoted(column.name) }},
        {%- endfor %}
        {%- for name, expression in derived_columns.items() %}
        {{ cdc_vault.derived_expression(expression, columns) }} as {{ cdc_vault.spelled(name)[0] }},
        {%- endfor %}
        _is_deleted as is_deleted,
        _loaded_at as load_date,
        _valid_from as applied_date,
        {{ cdc_vault.source_position() }} as source_seq,
        _record_source as record_source
      from {{ "(" ~ cdc_vault.no_rows(cdc_vault.stage_columns(source_model, {}).values() | list) ~ ") as _lh_awaited" if awaited else cdc_vault.handed_or("_lh_parsed_" ~ source_model, parsed) }}
    )
  {%- endif -%}
{%- endmacro %}

{#-
  Whether the parsed table of a stage was never there. That tells the stage's view: one that reads the table was made when it was there, so somebody
  has dropped it since, and whoever reads the view fails.
-#}
{% macro is_awaited(parsed, stage) %}
  {%- if parsed.is_cte or cdc_vault.is_there(parsed) -%}{{ return(false) }}{%- endif -%}
  {%- set kind = cdc_vault.kind_there(stage) -%}
  {{ return(kind is none or (kind == "VIEW" and cdc_vault.shows_no_table(cdc_vault.view_text(stage)))) }}
{% endmacro %}

{#- Whether the text of a stage's view is that of before the first load. -#}
{% macro shows_no_table(text) %}
  {{ return("_lh_awaited" in text) }}
{% endmacro %}

{#- Name and type of each of them, as the header of who is handed the rows has them. -#}
{% macro columns_of_stage(columns, hashed_columns) %}
  {%- set found = [] -%}
  {%- for column in columns.values() -%}{%- do found.append({"name": column.name, "type": column.type}) -%}{%- endfor -%}
  {%- for name in hashed_columns -%}{%- do found.append({"name": name, "type": "varchar"}) -%}{%- endfor -%}
  {%- set moment = "timestamp(6) with time zone" -%}
  {%- for name, type in [("is_deleted", "boolean"), ("load_date", moment), ("applied_date", moment), ("source_seq", "varchar"), ("record_source", "varchar")] -%}
    {%- do found.append({"name": name, "type": type}) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- Columns of the parsed model by name, with their types from the declaration, and the derived ones. -#}
{% macro stage_columns(source_model, derived_columns) %}
  {%- set names = source_model.replace("parsed_", "", 1).split("__", 1) -%}
  {%- set columns = {} -%}
  {%- for column in cdc_vault.declared_columns(cdc_vault.declared_table(names[0], names[1])) -%}
    {%- do columns.update({column.name: column}) -%}
  {%- endfor -%}
  {%- for name, expression in derived_columns.items() -%}
    {%- do columns.update({name: dict(columns.get(expression, {"type": "varchar"}), name=name)}) -%}
  {%- endfor -%}
  {{ return(columns) }}
{% endmacro %}

{% macro derived_expression(expression, columns) -%}
  {%- if expression.startswith("!") -%}
    '{{ expression[1:] | replace("'", "''") }}'
  {%- else -%}
    {{ cdc_vault.quoted(expression) if expression in columns else "cast(" ~ expression ~ " as varchar)" }}
  {%- endif -%}
{%- endmacro %}

{% macro hashed_column(name, spec, columns, hashed_columns={}) -%}
  {%- set spec = spec if spec is mapping else {"columns": spec} -%}
  {%- set keys, inputs = [], [] -%}
  {%- for key in spec.get("keys", []) -%}
    {%- if key not in hashed_columns -%}
      {{ exceptions.raise_compiler_error(model.name ~ ": " ~ name ~ " is made of " ~ key ~ ", which the stage does not hash") }}
    {%- endif -%}
    {%- do keys.append(cdc_vault.hashed_column(key, hashed_columns[key], columns)) -%}
  {%- endfor -%}
  {%- for part in spec.get("columns", []) -%}
    {%- set group, names = [part] if part is string or part is mapping else part, [] -%}
    {%- for entry in group -%}{%- do names.append(entry.column if entry is mapping else entry) -%}{%- endfor -%}
    {%- for column in names -%}
      {%- set entry = group[loop.index0] -%}
      {%- if column.startswith("!") -%}
        {%- do inputs.append({"constant": column[1:]}) -%}
      {%- elif column not in columns -%}
        {{ exceptions.raise_compiler_error(model.name ~ ": " ~ name ~ " hashes " ~ column ~ ", which the stage does not have") }}
      {%- else -%}
        {%- do inputs.append(dict(
          columns[column], part_of=names if names | length > 1 else [], key_type=entry.type if entry is mapping else ""
        )) -%}
      {%- endif -%}
    {%- endfor -%}
  {%- endfor -%}
  {%- if keys -%}
    {%- for input in inputs -%}{%- do keys.append(cdc_vault.key_part(input)) -%}{%- endfor -%}
    {{ cdc_vault.hash_of(keys | join(" || '|' || ")) }}
  {%- elif spec.get("is_hashdiff") -%}
    {{ cdc_vault.hash_diff(inputs) }}
  {%- else -%}
    {{ cdc_vault.hash_key(inputs, spec.get("normalize"), spec.get("blank") or "keep") }}
  {%- endif -%}
{%- endmacro %}
