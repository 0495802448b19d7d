{#-
  A truncate names no key, so it becomes one delete for each key that is alive at its position: a version that is not a
  delete, with the truncate before the key's next event. One CTE chain that ends in `truncated`.
-#}
{% macro truncated_keys(raw, columns, news) -%}
  {%- set key = key_names(columns) -%}
  truncates as (
    select _epoch, _commit_lsn, _seq, _committed_at, _ingested_at, {{ source_position() }} as position
    from {{ raw }}
    where _op = 't' and {{ news.truncated }}
  ),
  versions as (
    select {{ key }}, position, dead, lead(position) over (partition by {{ key }} order by position) as next_position
    from (
      select {{ key }}, position, _op = 'd' as dead from arrived
      {%- if news.known %}
      union all
      select {{ key }}, {{ source_position() }}, _deleted from {{ this }}
      {%- endif %}
    )
  ),
  truncated as (
    select *
    from (
      select {{ key_names(columns, "versions") }}, truncates.*,
        row_number() over (
          partition by {{ key_names(columns, "versions") }}, versions.position order by truncates.position
        ) as nth
      from versions
      join truncates
        on truncates.position > versions.position
        and truncates.position < coalesce(versions.next_position, '~')
      where not versions.dead
    )
    where nth = 1
  )
{%- endmacro %}
