{#-
  A truncate names no key, so it becomes one delete for each key that is alive at its position: a version that is not a
  delete, with the truncate before the key's next event. One CTE chain that ends in `truncated`.
-#}
{% macro truncated_keys(raw, columns, new_data) -%}
  {%- set key = cdc_vault.key_names(columns) -%}
  truncates as (
    select _epoch, _commit_lsn, _seq, _committed_at, _ingested_at, {{ cdc_vault.source_position() }} as _lh_position
    from {{ raw }}
    where _op = 't' and {{ new_data.truncated }}
  ),
  versions as (
    select {{ key }}, _lh_position, _lh_dead, lead(_lh_position) over (partition by {{ key }} order by _lh_position) as _lh_next
    from (
      select {{ key }}, _lh_position, _op = 'd' as _lh_dead from arrived
      {%- if new_data.known %}
      union all
      select {{ key }}, {{ cdc_vault.source_position() }}, _is_deleted from {{ this }}
      {%- elif new_data.earlier %}
      union all
      select {{ key }}, {{ cdc_vault.source_position() }}, _is_deleted from earlier
      {%- endif %}
    )
  ),
  truncated as (
    select *
    from (
      select {{ cdc_vault.key_names(columns, "versions") }}, truncates.*,
        row_number() over (
          partition by {{ cdc_vault.key_names(columns, "versions") }}, versions._lh_position order by truncates._lh_position
        ) as _lh_nth
      from versions
      join truncates
        on truncates._lh_position > versions._lh_position
        and truncates._lh_position < coalesce(versions._lh_next, '~')
      where not versions._lh_dead
    )
    where _lh_nth = 1
  )
{%- endmacro %}
