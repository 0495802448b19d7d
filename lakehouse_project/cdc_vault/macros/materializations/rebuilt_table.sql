{#-
  A table that is built anew, in one atomic replacement, when a table it reads has new data, and left alone otherwise: a
  mart equals its source exactly, deleted rows gone, which no append can do; and a rerun with no new data makes no snapshot.
  New data means that a row came or went: the number of rows of each table tells, and the newest snapshot that has changed any,
  through compaction and expiry. Both are those of the newest state, which after a restore in place is not the newest snapshot.
  They come from snapshot summaries; nothing is counted. Of another mart it is what that was built from; of what is neither, as
  a seed, the snapshot; of a current view the refresh of its mirror that last brought it past what it cannot follow. Of views in
  between counts what stands in Trino: a build that does not make them reads them as they were before a change of the project. What the mart was built from stands in its own properties, written by the same
  statement that builds it. Where it is known which of its rows change, those alone are built (`by_key.sql`).
-#}
{% materialization rebuilt_table, adapter='trino' %}
  {%- set relation = cdc_vault.next_of(this).incorporate(type='table') -%}
  {%- set existing = cdc_vault.existing_relation(relation) -%}
  {%- set read = cdc_vault.tables_read(model.unique_id) -%}
  {%- set sizes = cdc_vault.table_sizes(read.tables) if read.tables else "" -%}
  {%- set signature = local_md5(sql ~ sizes ~ cdc_vault.states_of_others(read) ~ cdc_vault.mirrors_passed(read.current) ~ cdc_vault.views_as_made(read.views) ~ read.code | sort | join) -%}

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

{#-
  The nearest appended `tables` below a model, seen through views; `whole`: it reads nothing else. Beside them the `views` in
  between, by name their code, the `current` ones among them, the `code` of what is ephemeral, the nearest `marts`, as they are
  read, and the `others`: seeds, sources, and what dbt makes otherwise.
-#}
{% macro tables_read(id) %}
  {%- set waiting, seen, found = [id], [], {"tables": [], "whole": true, "views": {}, "code": [], "current": [], "marts": [], "others": []} -%}
  {%- for _ in range(10000) if waiting -%}
    {%- set next = waiting.pop() -%}
    {%- set node = graph.nodes.get(next) or graph.get("sources", {}).get(next) -%}
    {%- set kind = node.config.materialized if node and node.resource_type == "model" else none -%}
    {%- if next in seen -%}
    {%- elif kind == "append_only" -%}
      {%- do found.tables.append(api.Relation.create(node.database, node.schema, node.alias)) -%}
    {%- else -%}
      {%- if kind != "view" -%}{%- do found.update(whole=false) -%}{%- endif -%}
      {%- if node and (next == id or kind in ("view", "ephemeral")) -%}{%- do waiting.extend(node.depends_on.nodes) -%}{%- endif -%}
      {%- if next == id or not node -%}
      {%- elif kind == "ephemeral" -%}
        {%- do found.code.append(node.raw_code) -%}
      {%- elif kind == "view" -%}
        {%- do found.views.update({node.schema ~ "." ~ node.alias: node.raw_code}) -%}
        {%- if cdc_vault.is_current_view(node) -%}{%- do found.current.append(node.alias) -%}{%- endif -%}
      {%- elif kind == "rebuilt_table" -%}
        {%- set mart = api.Relation.create(node.database, node.schema, node.alias) -%}
        {%- do found.marts.append(cdc_vault.next_of(mart) if next in graph.nodes[id].depends_on.nodes else mart) -%}
      {%- else -%}
        {%- do found.others.append(api.Relation.create(node.database, node.schema, node.alias or node.identifier)) -%}
      {%- endif -%}
    {%- endif -%}
    {%- do seen.append(next) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  Name, number of rows and newest snapshot with changes of each table, as text; `LAKEHOUSE_TABLE_SIZES` (by table,
  `<rows>/<snapshot>`) gives them to who has looked already.
-#}
{% macro table_sizes(tables) %}
  {%- set given, sizes = fromjson(env_var("LAKEHOUSE_TABLE_SIZES", "{}")), [] -%}
  {%- for table in tables if table.schema ~ "." ~ table.identifier in given -%}
    {%- do sizes.append(table.schema ~ "." ~ table.identifier ~ ":" ~ given[table.schema ~ "." ~ table.identifier]) -%}
  {%- endfor -%}
  {%- if sizes | length == tables | length -%}{{ return(sizes | sort(case_sensitive=true) | join(" ")) }}{%- endif -%}
  {%- set counts -%}
    {%- for table in tables | sort(attribute="identifier") -%}
    {{ "union all" if not loop.first }}
    select '{{ table.schema }}.{{ table.identifier }}:' || cast(
      cast(summary['total-records'] as bigint) - coalesce(cast(element_at(summary, 'total-position-deletes') as bigint), 0) as varchar)
      || '/' || coalesce((
        select max_by(cast(changes.snapshot_id as varchar), changes.committed_at)
        from {{ cdc_vault.system_table(table, "snapshots") }} as changes
        join {{ cdc_vault.system_table(table, "history") }} as history on history.snapshot_id = changes.snapshot_id
        where history.is_current_ancestor and changes.operation <> 'replace'
      ), '') as size
    from {{ cdc_vault.system_table(table, "snapshots") }}
    where snapshot_id in (select snapshot_id from {{ cdc_vault.system_table(table, "refs") }} where name = 'main')
    {% endfor -%}
  {%- endset -%}
  {{ return(run_query("select array_join(array_agg(size order by size), ' ') from (" ~ counts ~ ")").rows[0][0]) }}
{% endmacro %}

{#-
  As text, what the marts among what was `read` were built from, and the snapshots of other tables. Of a view that is declared as
  a source, or of what another catalog has, nothing tells: it is always new.
-#}
{% macro states_of_others(read) %}
  {%- set states = [] -%}
  {%- for mart in read.marts | sort(attribute="identifier") -%}
    {%- do states.append(mart.identifier ~ ":" ~ cdc_vault.table_property(mart, "lakehouse.built-from")) -%}
  {%- endfor -%}
  {%- for relation in read.others | sort(attribute="identifier") -%}
    {%- set there = adapter.get_relation(relation.database, relation.schema, relation.identifier) if relation.database == target.database else none -%}
    {%- set snapshot = run_query("select " ~ cdc_vault.current_snapshot(there)).rows if there is not none and there.is_table else [[invocation_id]] -%}
    {%- do states.append(relation.schema ~ "." ~ relation.identifier ~ "@" ~ (snapshot[0][0] if snapshot | length else "")) -%}
  {%- endfor -%}
  {{ return(states | join(" ")) }}
{% endmacro %}

{#-
  As text, the refresh of each mirror that last brought the current view of its table past what that cannot follow, as a
  truncate; nothing of a mirror of which none has. `LAKEHOUSE_TABLE_SIZES` gives it to who has looked already.
-#}
{% macro mirrors_passed(views) %}
  {%- set given, found = fromjson(env_var("LAKEHOUSE_TABLE_SIZES", "{}")), [] -%}
  {%- for table in graph.get("sources", {}).values() if views and "current_" ~ table.source_name ~ "__" ~ table.name in views and cdc_vault.is_mirrored(table) -%}
    {%- set schema = "mirror_" ~ table.source_name -%}
    {%- set mirror = none if given else adapter.get_relation(target.database, schema, table.name) -%}
    {%- set told = given.get(schema ~ "." ~ table.name, "").split("/") | last if given else none -%}
    {%- set passed = cdc_vault.table_property(mirror, "lakehouse.passed") if mirror is not none else told -%}
    {%- if passed -%}{%- do found.append(schema ~ "." ~ table.name ~ ":" ~ passed) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(found | sort(case_sensitive=true) | join(" ")) }}
{% endmacro %}

{#-
  As text, what Trino has of each of these views: the checksum in its comment (`view.sql`) or, of one that dbt-trino has made, that of
  its SQL; the project's code where that cannot be told. `LAKEHOUSE_VIEWS` (by view) gives it to who has looked already.
-#}
{% macro views_as_made(views) %}
  {%- set made, found = fromjson(env_var("LAKEHOUSE_VIEWS", "{}")), [] -%}
  {%- set definitions -%}
    {%- for view in views if view not in made %}
    {%- set schema, name = view.split(".") %}
    {{ "union all" if not loop.first }}
    select '{{ view }}', coalesce(
      (select regexp_extract(comment, '\[(current )?definition [0-9a-f]+\]') from system.metadata.table_comments
       where catalog_name = '{{ target.database }}' and schema_name = '{{ schema | lower }}' and table_name = '{{ name | lower }}'),
      (select lower(to_hex(md5(to_utf8(view_definition)))) from "{{ target.database }}".information_schema.views
       where table_schema = '{{ schema | lower }}' and table_name = '{{ name | lower }}'))
    {%- endfor -%}
  {%- endset -%}
  {%- for row in (run_query(definitions).rows if definitions else []) -%}{%- do made.update({row[0]: row[1]}) -%}{%- endfor -%}
  {%- for view, code in views.items() -%}{%- do found.append(view ~ ":" ~ (made.get(view) or code)) -%}{%- endfor -%}
  {{ return(found | sort(case_sensitive=true) | join(" ")) }}
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
