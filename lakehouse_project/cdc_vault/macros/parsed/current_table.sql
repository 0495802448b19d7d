{#-
  The table as the source had it at the last cut that was loaded: the newest version of each key, deleted ones left out.
  Where the table has a mirror, the mirror's refresh then has the view read that and what raw has after it, with the same
  columns: the source's alone, as a mirror has no others. The comment of the view says that it may (`view.sql`).

  Of a table that has never arrived it refuses every question: it would show no rows where the source may have some.
-#}
{% macro current_table(source_name, table_name) -%}
  {%- set parsed = ref("parsed_" ~ source_name ~ "__" ~ table_name) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
    {%- set table = cdc_vault.declared_table(source_name, table_name) -%}
    {%- set columns = cdc_vault.declared_columns(table) -%}
    {%- set has_arrived = cdc_vault.has_arrived(source_name, table_name, parsed) -%}
    select
      {%- for column in columns %}
      {{ cdc_vault.for_readers(column) }}{{ "," if not loop.last or not cdc_vault.is_mirrored(table) }}
      {%- endfor %}
      {%- if not cdc_vault.is_mirrored(table) %}
      _valid_from,
      _epoch,
      _commit_lsn,
      _seq,
      _loaded_at
      {%- endif %}
    from {% if not has_arrived %}(
      values cast(fail({{ cdc_vault.sql_text(cdc_vault.why_refused(source_name, table_name)) }}) as boolean)
    ) as _lh_refused (_lh_answers) left join {% endif %}(
      select
        *,
        row_number() over (
          partition by {{ cdc_vault.key_names(columns) }} order by _epoch desc, _commit_lsn desc, _seq desc
        ) as _lh_version
      from {{ parsed }}
    )
    {% if not has_arrived %}on false where _lh_answers{% else %}where _lh_version = 1 and not _is_deleted{% endif %}
  {%- endif -%}
{%- endmacro %}

{#- Whether a raw table is in the run's cut, or was in an earlier one: a kept one, or one that parsed has rows of. -#}
{% macro has_arrived(source_name, table_name, parsed) %}
  {%- set bounds = cdc_vault.run_bounds(source_name) -%}
  {%- if bounds and bounds.epoch is not none and table_name in bounds.tables -%}{{ return(true) }}{%- endif -%}
  {%- set cuts = adapter.get_relation(target.database, "meta", "cuts") -%}
  {%- set traces = [] -%}
  {%- if load_relation(parsed) -%}{%- do traces.append("exists (select 1 from " ~ parsed ~ ")") -%}{%- endif -%}
  {%- if cuts -%}
    {%- do traces.append(
      "exists (select 1 from " ~ cuts ~ " where source = '" ~ source_name ~ "' and contains(map_keys(snapshots), '" ~ table_name ~ "'))"
    ) -%}
  {%- endif -%}
  {{ return(traces and run_query("select " ~ traces | join(" or ")).rows[0][0]) }}
{% endmacro %}

{#- What a reader is told. -#}
{% macro why_refused(source_name, table_name) -%}
  raw_{{ source_name }}.{{ table_name }} has never arrived (`lakehouse status` says why), so nobody knows its rows; load {{ source_name }} once it has
{%- endmacro %}

{#- Whether a table with a key has a mirror. -#}
{% macro is_mirrored(table) %}
  {{ return(cdc_vault.declared_meta(table, "mirror") != "none") }}
{% endmacro %}

{#- Whether a model is nothing but the current view of the table that its name says; one with SQL of its own may filter. -#}
{% macro is_current_view(node) %}
  {%- set called = modules.re.match("(?s)\\s*(?:\\{#.*?#\\}\\s*)*\\{\\{-?\\s*cdc_vault\\.current_table\\(\\s*['\"](\\w+)['\"]\\s*,\\s*['\"](\\w+)['\"]\\s*\\)\\s*-?\\}\\}\\s*\\Z", node.raw_code) -%}
  {{ return(called is not none and node.schema == "parsed" and node.alias == "current_" ~ called[1] ~ "__" ~ called[2]) }}
{% endmacro %}
