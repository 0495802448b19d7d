{#-
  What the source entries in models/sources/ say about a raw table. They are the only place a table is declared, so
  everything below it (parsed columns, keys, types for hashing) is read from there when a model is compiled.
-#}

{#- The source entry, or an error that says what to do. -#}
{% macro declared_table(source_name, table_name) %}
  {%- for node in graph.sources.values() if node.source_name == source_name and node.name == table_name -%}
    {{ return(node) }}
  {%- endfor -%}
  {{ exceptions.raise_compiler_error("no source entry " ~ source_name ~ "." ~ table_name ~ ": add it to models/sources/" ~ source_name ~ ".yml") }}
{% endmacro %}

{#- The part of `config.meta` of that name. -#}
{% macro declared_meta(node, part) %}
  {{ return(node.config.get("meta", {}).get(part) or {}) }}
{% endmacro %}

{#- Columns as the lake has them: name, the name in the source, Postgres type, Trino type, whether it is in the key, policy. -#}
{% macro declared_columns(node) %}
  {%- set raw = cdc_vault.declared_meta(node, "raw") -%}
  {%- set columns = [] -%}
  {%- for column in node.columns.values() if column.name not in raw.get("exclude", []) -%}
    {%- set masked = raw.get("mask", {}).get(column.name) == "sha256" -%}
    {%- do columns.append({
      "name": raw.get("alias", {}).get(column.name, column.name),
      "source_name": column.name,
      "postgres_type": column.data_type or "text",
      "type": "varchar" if masked else cdc_vault.lake_type(column.data_type or "text"),
      "is_key": column.name in raw.get("key", []),
      "on_unrepresentable": raw.get("on_unrepresentable", "error"),
    }) -%}
  {%- endfor -%}
  {{ return(columns) }}
{% endmacro %}

{#- `<source>.<schema>.<table>` of the relation in Postgres, `<source>.<topic>` of a topic in Kafka. -#}
{% macro record_source(node) %}
  {%- set raw = cdc_vault.declared_meta(node, "raw") -%}
  {{ return(node.source_name ~ "." ~ (raw.get("relation") or raw.topic)) }}
{% endmacro %}

{#- All sources that are declared, in order. -#}
{% macro declared_sources() %}
  {%- set names = [] -%}
  {%- for node in graph.sources.values() if node.schema.startswith("raw_") and node.source_name not in names -%}
    {%- do names.append(node.source_name) -%}
  {%- endfor -%}
  {{ return(names | sort) }}
{% endmacro %}

{#- The declared sources that models of these names read, through all that is in between. -#}
{% macro sources_below(names) %}
  {%- set waiting, seen, found = [], [], [] -%}
  {%- for id, node in graph.get("nodes", {}).items() if node.name in names and node.resource_type == "model" -%}
    {%- do waiting.append(id) -%}
  {%- endfor -%}
  {%- for _ in range(10000) if waiting -%}
    {%- set next = waiting.pop() -%}
    {%- set node, source = graph.nodes.get(next), graph.get("sources", {}).get(next) -%}
    {%- if source and source.schema.startswith("raw_") -%}{%- do found.append(source.source_name) -%}{%- endif -%}
    {%- if node and next not in seen -%}{%- do waiting.extend(node.depends_on.nodes) -%}{%- endif -%}
    {%- do seen.append(next) -%}
  {%- endfor -%}
  {{ return(found | unique | sort) }}
{% endmacro %}

{#- Whether a relation is there; a raw table is not before its first cycle. -#}
{% macro relation_exists(relation) %}
  {{ return(execute and adapter.get_relation(relation.database, relation.schema, relation.identifier) is not none) }}
{% endmacro %}

{#- The same where dbt's answer may be of the run's beginning: another run may have made it since. -#}
{% macro is_there(relation) %}
  {{ return(cdc_vault.relation_exists(relation) or cdc_vault.kind_there(relation) is not none) }}
{% endmacro %}

{#- What Trino says that a relation is, `VIEW` or `BASE TABLE`; none where it is not there. -#}
{% macro kind_there(relation) %}
  {%- set found = run_query(
    "select table_type from " ~ cdc_vault.quoted(relation.database) ~ ".information_schema.tables where table_schema = "
    ~ cdc_vault.sql_text(relation.schema | lower) ~ " and table_name = " ~ cdc_vault.sql_text(relation.identifier | lower)
  ) -%}
  {{ return(found.rows[0][0] if found.rows | length else none) }}
{% endmacro %}

{#-
  The model's table or view, or none. Who runs dbt every few seconds has looked already, and says of tables that are there
  which columns they have (`LAKEHOUSE_TABLE_COLUMNS`) or what they were built from (`LAKEHOUSE_BUILT_FROM`).
-#}
{% macro existing_relation(relation) %}
  {%- for given in ("LAKEHOUSE_TABLE_COLUMNS", "LAKEHOUSE_BUILT_FROM") if this.schema ~ "." ~ this.identifier in fromjson(env_var(given, "{}")) -%}
    {{ return(relation.incorporate(type="table")) }}
  {%- endfor -%}
  {{ return(load_cached_relation(relation)) }}
{% endmacro %}
