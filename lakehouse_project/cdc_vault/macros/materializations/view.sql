{#-
  A view that is left alone while its definition is the same. dbt's own replaces every view in every run, and each
  replacement leaves another metadata file in the object store; with sensors that is tens of thousands a day. The
  checksum of the definition stands at the end of the view's comment, whose second line says what Trino does not: that it
  ignores a question about the past. A current view is marked as one: the refresh of its mirror may change what it reads,
  and keeps the comment. Types of what it reads are part of the definition, because Trino keeps a view's types
  and refuses one below which a column was widened. That of a stage says what its hashes are, too (`check_stages`).

  A stage's view also stays while the parsed table below it is not loaded as it is declared: it would name a column that is not
  there, or keep a type that is about to be widened. Loads of other sources make it too, and their hub can go on with the former one.
  One from before the first load of that table (`is_awaited`) is made as soon as the table is there.
-#}
{% materialization view, adapter='trino' %}
  {%- set existing = load_cached_relation(this) -%}
  {%- set relation = this.incorporate(type='view') -%}
  {%- set comment = cdc_vault.view_comment() -%}
  {%- set marker = ("[current " if cdc_vault.is_current_view(model) else "[") ~ "definition " ~ local_md5(sql ~ comment ~ tojson(cdc_vault.column_descriptions()) ~ tojson(cdc_vault.types_below(model, {}))) ~ "]" -%}
  {%- set marker = cdc_vault.stage_marker(model.config.meta) ~ marker -%}

  {{ run_hooks(pre_hooks) }}
  {%- set stays = cdc_vault.why_view_stays(existing, marker) or cdc_vault.why_not_awaited(existing, relation, sql) -%}
  {%- if stays -%}
    {%- call noop_statement("main", stays, stays, 0) -%}{%- endcall -%}
  {%- else -%}
    {%- do cdc_vault.drop_for_view(existing) -%}
    {%- call statement("main") -%}
      create {{ "view" if existing is none and cdc_vault.shows_no_table(sql) else "or replace view" }} {{ relation }}
      {{ cdc_vault.comment_clause(comment ~ " " ~ marker) }}
      security {{ config.get("view_security", "definer") }}
      as {{ sql }}
    {%- endcall -%}
    {%- do cdc_vault.comment_columns(relation) -%}
  {%- endif -%}
  {%- set unready = cdc_vault.why_unready(sql) -%}
  {%- if unready -%}
    {%- call noop_statement("main", unready, unready, 0) -%}{%- endcall -%}
  {%- endif -%}
  {{ run_hooks(post_hooks) }}
  {{ return({"relations": [relation]}) }}
{% endmaterialization %}

{#- Why the view that is there is left alone: it is `unchanged`, or `waits` for the load of what it reads; none where it is made. -#}
{% macro why_view_stays(existing, marker) %}
  {%- if existing is none or not existing.is_view or should_full_refresh() -%}{{ return(none) }}{%- endif -%}
  {%- set there = cdc_vault.view_text(existing) -%}
  {%- if marker in there -%}{{ return("unchanged") }}{%- endif -%}
  {%- if cdc_vault.shows_no_table(there) -%}{{ return(none) }}{%- endif -%}
  {%- set awaited = cdc_vault.columns_awaited(model) -%}
  {%- if awaited -%}
    {%- do log(model.name ~ ": the view stays as it is until " ~ model.config.meta.source_model ~ " is loaded with " ~ awaited | join(", "), info=true) -%}
  {%- endif -%}
  {{ return("waits" if awaited else none) }}
{% endmacro %}

{#- A stage from before the first load of its table does not replace what another run has made of the table meanwhile. -#}
{% macro why_not_awaited(existing, relation, sql) %}
  {%- if existing is none or not cdc_vault.shows_no_table(sql) -%}{{ return(none) }}{%- endif -%}
  {{ return(none if cdc_vault.kind_there(relation) != "VIEW" or cdc_vault.shows_no_table(cdc_vault.view_text(relation)) else "waits") }}
{% endmacro %}

{#- Why a view is made that shows nothing of its table yet: a worker makes no view twice, but such a one; none of another view. -#}
{% macro why_unready(sql) %}
  {{ return("refuses" if "_lh_refused" in sql else "waits" if cdc_vault.shows_no_table(sql) else none) }}
{% endmacro %}

{#- Drops what is not a view, with its history; refuses a table that a pin keeps, or on whose files a restored copy lives. -#}
{% macro drop_for_view(existing) %}
  {%- if existing is not none and not existing.is_view -%}
    {%- set kept = run_query(cdc_vault.what_keeps(existing)).rows if existing.is_table else [] -%}
    {%- if kept -%}
      {{ exceptions.raise_compiler_error(
        existing.schema ~ "." ~ existing.identifier ~ " is a table, and would be dropped for the view with its history. Kept of it: "
        ~ kept | map(attribute=0) | join(", ") ~ ". First end a pin with `lakehouse maintain unpin NAME`, and drop a restored copy; or call the view otherwise"
      ) }}
    {%- endif -%}
    {%- do adapter.drop_relation(existing) -%}
  {%- endif -%}
{% endmacro %}

{#- A query of the pins and the restored copies of a table, as text: those that are called as `lakehouse maintain restore` calls them. -#}
{% macro what_keeps(relation) %}
  {%- set copy = (relation.identifier | lower) ~ "__as_of_" %}
  select 'pin ' || substr(name, 5) from {{ cdc_vault.system_table(relation, "refs") }} where starts_with(name, 'pin_')
  union all
  select 'restored copy ' || table_schema || '.' || table_name from "{{ relation.database }}".information_schema.tables
  where table_schema = {{ cdc_vault.sql_text(relation.schema | lower) }} 
    and starts_with(table_name, {{ cdc_vault.sql_text(copy) }}) and regexp_like(substr(table_name, {{ copy | length + 1 }}), '^[0-9]{14}')
  order by 1
{% endmacro %}

{#- The first line of the description, how to query the past, and the other lines. -#}
{% macro view_comment() %}
  {%- set lines = (model.description | trim).splitlines() -%}
  {%- set note = "A view: Trino ignores FOR TIMESTAMP AS OF and FOR VERSION AS OF on it. How to query the past: docs/past.md." -%}
  {{ return((lines[:1] + [note] + lines[1:]) | join("\n")) }}
{% endmacro %}

{#- The declared types of all that a model reads, directly or through others, by model. -#}
{% macro types_below(node, found) %}
  {%- for id in node.get("depends_on", {}).get("nodes", []) if id not in found -%}
    {%- set below = graph.nodes.get(id) or graph.sources.get(id) or {} -%}
    {%- set types = {} -%}
    {%- for name, column in below.get("columns", {}).items() -%}{%- do types.update({name: column.data_type}) -%}{%- endfor -%}
    {%- do found.update({id: types}) -%}
    {%- do cdc_vault.types_below(below, found) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{% macro column_descriptions() %}
  {%- set found = {} -%}
  {%- for column in model.columns.values() -%}{%- do found.update({column.name: column.description}) -%}{%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{% macro view_text(relation) %}
  {{ return(run_query("show create view " ~ relation).rows[0][0]) }}
{% endmacro %}
