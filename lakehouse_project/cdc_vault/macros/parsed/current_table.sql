{#- The table as the source had it at the last cut that was loaded: the newest version of each key, deleted ones left out. -#}
{% macro current_table(source_name, table_name) -%}
  {%- set parsed = ref("parsed_" ~ source_name ~ "__" ~ table_name) -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
    {%- set columns = cdc_vault.declared_columns(cdc_vault.declared_table(source_name, table_name)) -%}
    select
      {%- for column in columns %}
      {{ cdc_vault.for_readers(column) }},
      {%- endfor %}
      _valid_from,
      _epoch,
      _commit_lsn,
      _seq,
      _loaded_at
    from (
      select
        *,
        row_number() over (
          partition by {{ cdc_vault.key_names(columns) }} order by _epoch desc, _commit_lsn desc, _seq desc
        ) as _lh_version
      from {{ parsed }}
    )
    where _lh_version = 1 and not _is_deleted
  {%- endif -%}
{%- endmacro %}
