{#-
  A table that is built anew, in one atomic replacement, when a table it reads has new data, and left alone otherwise: a
  mart equals its source exactly, deleted rows gone, which no append can do; and a rerun with no new data makes no snapshot.
  New data means that a row was added: everything below the marts only grows, so the number of rows of each table tells,
  through compaction and expiry. (A table that is made anew has other columns, and a mart that reads them other SQL.) It is
  that of the newest state, which after a restore in place is not the newest snapshot. It comes from snapshot summaries;
  nothing is counted. What the mart was built from stands in its own properties, written by the same statement that builds it.
  Where it is known which of its rows change, those alone are built (`by_key.sql`).
-#}
{% materialization rebuilt_table, adapter='trino' %}
  {%- set relation = cdc_vault.next_of(this).incorporate(type='table') -%}
  {%- set existing = cdc_vault.existing_relation(relation) -%}
  {%- set built_from = cdc_vault.tables_read(model.unique_id).tables -%}
  {%- set signature = local_md5(sql ~ (cdc_vault.table_sizes(built_from) if built_from else "")) -%}

  {{ run_hooks(pre_hooks) }}
  {%- if existing is not none and existing.is_table and not should_full_refresh() and cdc_vault.built_from(existing) == signature -%}
    {%- call noop_statement("main", "no new data", "no new data", 0) -%}{%- endcall -%}
  {%- else -%}
    {%- set changes = cdc_vault.changes_given(sql, existing) -%}
    {%- set keys = cdc_vault.changed_keys(changes) -%}
    {%- if keys is not none -%}
      {%- if keys -%}
        {%- call statement("main") -%}{{ cdc_vault.merge_keys(relation, changes.key, keys, cdc_vault.table_columns(relation, since=true), sql) }}{%- endcall -%}
      {%- else -%}
        {%- call noop_statement("main", "no row changes", "no row changes", 0) -%}{%- endcall -%}
      {%- endif -%}
      {%- do run_query(cdc_vault.set_properties(relation, [("lakehouse.built-from", signature)])) -%}
    {%- else -%}
    {%- if existing is not none and not existing.is_table -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
    {%- call statement("main") -%}
      create or replace table {{ relation }}
      {{ cdc_vault.comment_clause(model.description) }}
      with (
        {%- for name, value in config.get("properties", {}).items() %}
        {{ name }} = {{ value }},
        {%- endfor %}
        extra_properties = {{ cdc_vault.table_properties([("lakehouse.built-from", signature), ("lakehouse.made-of", local_md5(sql))]) }}
      )
      as {{ sql }}
    {%- endcall -%}
    {%- endif -%}
    {%- if relation.schema == this.schema -%}{%- do cdc_vault.comment_columns(relation) -%}{%- endif -%}
  {%- endif -%}
  {{ run_hooks(post_hooks) }}
  {{ return({"relations": [relation]}) }}
{% endmaterialization %}

{#- The nearest appended `tables` below a model, seen through views and marts; `whole`: through views alone, and it reads nothing else. -#}
{% macro tables_read(id) %}
  {%- set waiting, seen, found = [id], [], {"tables": [], "whole": true} -%}
  {%- for _ in range(10000) if waiting -%}
    {%- set next = waiting.pop() -%}
    {%- set node = graph.nodes.get(next) -%}
    {%- if next in seen -%}
    {%- elif node and node.config.materialized == "append_only" -%}
      {%- do found.tables.append(api.Relation.create(node.database, node.schema, node.alias)) -%}
    {%- else -%}
      {%- if not node or node.config.materialized != "view" -%}{%- do found.update(whole=false) -%}{%- endif -%}
      {%- if node -%}{%- do waiting.extend(node.depends_on.nodes) -%}{%- endif -%}
    {%- endif -%}
    {%- do seen.append(next) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- Name and number of rows of each table, as text; `LAKEHOUSE_TABLE_ROWS` gives them to who has looked already. -#}
{% macro table_sizes(tables) %}
  {%- set given, sizes = fromjson(env_var("LAKEHOUSE_TABLE_ROWS", "{}")), [] -%}
  {%- for table in tables if table.schema ~ "." ~ table.identifier in given -%}
    {%- do sizes.append(table.schema ~ "." ~ table.identifier ~ ":" ~ given[table.schema ~ "." ~ table.identifier]) -%}
  {%- endfor -%}
  {%- if sizes | length == tables | length -%}{{ return(sizes | sort(case_sensitive=true) | join(" ")) }}{%- endif -%}
  {%- set counts -%}
    {%- for table in tables | sort(attribute="identifier") -%}
    {{ "union all" if not loop.first }}
    select '{{ table.schema }}.{{ table.identifier }}:' || cast(
      cast(summary['total-records'] as bigint) - coalesce(cast(element_at(summary, 'total-position-deletes') as bigint), 0) as varchar) as size
    from {{ cdc_vault.system_table(table, "snapshots") }}
    where snapshot_id in (select snapshot_id from {{ cdc_vault.system_table(table, "refs") }} where name = 'main')
    {% endfor -%}
  {%- endset -%}
  {{ return(run_query("select array_join(array_agg(size order by size), ' ') from (" ~ counts ~ ")").rows[0][0]) }}
{% endmacro %}

{#- What the table was built from; `LAKEHOUSE_BUILT_FROM` (by table, as JSON) gives it to who has looked already. -#}
{% macro built_from(relation) %}
  {%- set given = fromjson(env_var("LAKEHOUSE_BUILT_FROM", "{}")) -%}
  {%- set name = this.schema ~ "." ~ this.identifier -%}
  {{ return(given[name] if name in given else cdc_vault.table_property(relation, "lakehouse.built-from")) }}
{% endmacro %}

{% macro table_property(relation, name) %}
  {%- set found = run_query("select value from " ~ cdc_vault.system_table(relation, "properties") ~ " where key = '" ~ name ~ "'") -%}
  {{ return(found.rows[0][0] if found.rows | length else none) }}
{% endmacro %}

{#- An Iceberg metadata table, `"<table>$<name>"`. -#}
{% macro system_table(relation, name) %}
  {{ return(relation.incorporate(path={"identifier": relation.identifier ~ "$" ~ name})) }}
{% endmacro %}
