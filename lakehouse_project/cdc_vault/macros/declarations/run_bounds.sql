{#-
  Every run writes down once what it reads: per source the newest cut, and the days of a backfill. All models of the
  run read up to that cut, however long the run takes and whatever ingestion publishes meanwhile; and because the
  bounds are rows and not `--vars`, dbt has no reason to parse the project again.

  Who runs dbt every few seconds gives the cuts in the environment (`LAKEHOUSE_CUTS`: by source epoch, cut_lsn and tables, as
  JSON). Nothing is written then, and there is no backfill: a row for each run would be a file for each run.
-#}

{% macro run_bounds_relation() %}
  {{ return(api.Relation.create(database=target.database, schema="meta", identifier="run_bounds", type="table")) }}
{% endmacro %}

{#- Hook on-run-start. Rows older than a week are dropped by whole partitions. -#}
{% macro write_run_bounds() %}
  {%- if execute and not env_var("LAKEHOUSE_CUTS", "") -%}
    {%- set bounds = cdc_vault.run_bounds_relation() -%}
    {%- if adapter.get_relation(bounds.database, bounds.schema, bounds.identifier) is none -%}
      {%- do run_query("create schema if not exists " ~ bounds.without_identifier()) -%}
      {%- do run_query(cdc_vault.create_run_bounds(bounds)) -%}
      {#- dbt has listed the schema already; without this the run that makes the table would not see it. -#}
      {%- do adapter.cache_added(bounds) -%}
    {%- else -%}
      {%- do cdc_vault.complete_run_bounds(bounds) -%}
    {%- endif -%}
    {%- do run_query(cdc_vault.insert_run_bounds(bounds)) -%}
    {%- do run_query("delete from " ~ bounds ~ " where created_at < date_trunc('day', current_timestamp) - interval '7' day") -%}
  {%- endif -%}
{% endmacro %}

{#- Name, type and meaning of each. A table that an earlier release has made gets those it lacks. -#}
{% macro run_bounds_columns() %}
  {{ return([
    ("invocation_id", "varchar", "The dbt invocation"),
    ("source", "varchar", "The source"),
    ("epoch", "integer", "Incarnation of the source at the cut; null without a cut"),
    ("cut_lsn", "bigint", "Rows at or below it are read; null without a cut, then nothing is read"),
    ("tables", "array(varchar)", "Tables the cut covers"),
    ("day_from", "date", "First day of commit time of a backfill, else null"),
    ("day_to", "date", "Last day of commit time of a backfill, else null"),
    ("created_at", "timestamp(6) with time zone", "When the run started"),
  ]) }}
{% endmacro %}

{% macro create_run_bounds(bounds) %}
  create table if not exists {{ bounds }} (
    {% for name, type, meaning in cdc_vault.run_bounds_columns() -%}
    {{ name }} {{ type }} comment '{{ meaning }}'{{ "," if not loop.last }}
    {% endfor %}
  )
  comment 'What each dbt run read up to'
  with (partitioning = array['day(created_at)'])
{% endmacro %}

{% macro complete_run_bounds(bounds) %}
  {%- set there = adapter.get_columns_in_relation(bounds) | map(attribute="name") | list -%}
  {%- for name, type, meaning in cdc_vault.run_bounds_columns() if name not in there -%}
    {%- do run_query("alter table " ~ bounds ~ " add column if not exists " ~ name ~ " " ~ type ~ " comment '" ~ meaning ~ "'") -%}
  {%- endfor -%}
{% endmacro %}

{% macro insert_run_bounds(bounds) %}
  {%- set cuts = adapter.get_relation(bounds.database, "meta", "cuts") -%}
  {%- set days = [env_var("LAKEHOUSE_DAY_FROM", ""), env_var("LAKEHOUSE_DAY_TO", "")] -%}
  insert into {{ bounds }} (invocation_id, source, epoch, cut_lsn, tables, day_from, day_to, created_at)
  select
    '{{ invocation_id }}', sources.source, cut.epoch, cut.cut_lsn, cut.tables,
    {% for day in days -%}
    {{ "date '" ~ day ~ "'" if day else "cast(null as date)" }},
    {% endfor -%}
    current_timestamp
  from (values '{{ cdc_vault.declared_sources() | join("', '") }}') as sources (source)
  left join (
    {%- if cuts is none %}
    select cast(null as varchar) as source, cast(null as integer) as epoch, cast(null as bigint) as cut_lsn,
      cast(null as array(varchar)) as tables
    where false
    {%- else %}
    select source, newest.epoch, newest.cut_lsn, newest.tables
    from (
      select source, max_by(
        cast(row(epoch, cut_lsn, map_keys(snapshots)) as row(epoch integer, cut_lsn bigint, tables array(varchar))),
        row(epoch, cut_lsn, published_at)
      ) as newest
      from {{ cuts }}
      group by source
    )
    {%- endif %}
  ) as cut on cut.source = sources.source
{% endmacro %}

{#- The bounds of this run: epoch, cut_lsn and tables of one source, and the days of a backfill; none before any run. -#}
{% macro run_bounds(source_name) %}
  {%- set given = env_var("LAKEHOUSE_CUTS", "") -%}
  {%- if given -%}
    {%- set cut = fromjson(given).get(source_name) -%}
    {{ return(dict(cut, day_from=none, day_after=none) if cut else none) }}
  {%- endif -%}
  {%- set bounds = cdc_vault.run_bounds_relation() -%}
  {%- if adapter.get_relation(bounds.database, bounds.schema, bounds.identifier) is none -%}
    {{ return(none) }}
  {%- endif -%}
  {%- set found = run_query(
    "select epoch, cut_lsn, array_join(tables, ','), cast(day_from as varchar), cast(date_add('day', 1, day_to) as varchar) from "
    ~ bounds ~ " where invocation_id = '" ~ invocation_id ~ "' and source = '" ~ source_name
    ~ "' and created_at >= current_timestamp - interval '2' day"
  ) -%}
  {%- for row in found.rows -%}
    {{ return({
      "epoch": row[0], "cut_lsn": row[1], "tables": (row[2] or "").split(","), "day_from": row[3], "day_after": row[4],
    }) }}
  {%- endfor -%}
  {{ return(none) }}
{% endmacro %}

{#- As a query with one row, or none: the days of this run's backfill, the first and the one after the last. -#}
{% macro days_of_run() -%}
  {%- if env_var("LAKEHOUSE_CUTS", "") -%}
    select '' as days where false
  {%- else -%}
    select distinct cast(day_from as varchar) || '|' || cast(cast(day_to + interval '1' day as date) as varchar) as days
    from {{ cdc_vault.run_bounds_relation() }}
    where invocation_id = '{{ invocation_id }}' and day_from is not null
      and created_at >= current_timestamp - interval '2' day
  {%- endif -%}
{%- endmacro %}
