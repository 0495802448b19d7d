{#-
  TOASTed columns. An update that does not touch a large value does not carry it: the value is null in raw and the
  column named in `_unchanged`. Parsed takes it from the version before, which may have arrived in the same batch, be
  in parsed already, or stand under another key, where `_old_key` leads.
-#}

{#- Whether this row lacks the column. -#}
{% macro lacks(column, row="") -%}
  {%- set unchanged = (row ~ "." if row else "") ~ "_unchanged" -%}
  coalesce(contains({{ unchanged }}, '{{ column.source_name }}') or contains({{ unchanged }}, '{{ column.name }}'), false)
{%- endmacro %}

{#- The key before a key change, typed. -#}
{% macro old_key_values(columns) -%}
  {%- for column in columns if column.is_key -%}
    {%- set text = "json_extract_scalar(_old_key, '$[\"" ~ column.source_name ~ "\"]')" -%}
    {{ from_postgres_text(text, column) }} as {{ adapter.quote(column.name) }}{{ ", " if not loop.last }}
  {%- endfor -%}
{%- endmacro %}

{#-
  CTEs that end in `filled (position, columns…)`. Only keys with a lacking row take part. A row's life begins with the
  last insert of its key (`born`); within it the last value that was carried counts. A life that began with a key
  change goes on from the old key's: a probe stands there at the position of the change.
-#}
{% macro toast_fill(columns, news) -%}
  {%- set lacking = [] -%}
  {%- for column in columns if column.source_name in news.unchanged or column.name in news.unchanged -%}
    {%- do lacking.append(column) -%}
  {%- endfor -%}
  {%- set key = key_names(columns) -%}
  moved as (
    select position, {{ old_key_values(columns) }}
    from arrived
    where _unchanged is not null and _old_key is not null
  ),
  lacking_keys as (
    select {{ key }} from arrived where _unchanged is not null
    union
    select {{ key }} from moved
  ),
  lives as (
    select *, max(case when _op in ('c', 'r') then position end) over (partition by {{ key }} order by position) as born
    from (
      select {{ key }}, position, _op, 'arrived' as kind
        {%- for column in lacking %},
        case when _op <> 'd' and not {{ lacks(column) }} then array[{{ adapter.quote(column.name) }}] end as carried_{{ loop.index }}
        {%- endfor %}
      from arrived
      where ({{ key }}) in (select {{ key }} from lacking_keys)
      union all
      select {{ key }}, {{ source_position() }}, _op, 'known'
        {%- for column in lacking %}, case when not _deleted then array[{{ adapter.quote(column.name) }}] end{%- endfor %}
      from {{ this }}
      where ({{ key }}) in (select {{ key }} from lacking_keys)
      union all
      select {{ key }}, position, null, 'probe'{%- for column in lacking %}, null{%- endfor %}
      from moved
    )
  ),
  last_carried as (
    select position, kind, born
      {%- for column in lacking %},
      last_value(carried_{{ loop.index }}) ignore nulls over (partition by {{ key }}, born order by position) as last_{{ loop.index }}
      {%- endfor %}
    from lives
  ),
  filled as (
    select own.position
      {%- for column in lacking %},
      coalesce(own.last_{{ loop.index }}, before.last_{{ loop.index }})[1] as {{ adapter.quote(column.name) }}
      {%- endfor %}
    from last_carried as own
    left join last_carried as before on before.kind = 'probe' and before.position = own.born
    where own.kind = 'arrived'
  )
{%- endmacro %}

{#-
  Key changes of key changes. `toast_fill` follows one step, so a change whose old key is itself the outcome of a change
  in the same load starts another batch, in which the first is already in parsed. Rare, and then exact.
-#}
{% macro batches_by_key_change(raw, columns, window) %}
  {%- set key = key_names(columns) -%}
  {%- set chained = run_query(
    "with moved as (select " ~ source_position() ~ " as position, * from " ~ raw
    ~ " where _unchanged is not null and _old_key is not null and " ~ window ~ "),"
    ~ " before as (select position, " ~ old_key_values(columns) ~ " from moved)"
    ~ " select distinct before.position from before join moved on (" ~ key_names(columns, "moved") ~ ") = ("
    ~ key_names(columns, "before") ~ ") and moved.position < before.position order by 1"
  ) -%}
  {%- set starts = chained.rows | map(attribute=0) | list -%}
  {%- set batches = [] -%}
  {%- for index in range(starts | length + 1) -%}
    {%- set after = source_position() ~ " >= '" ~ starts[index - 1] ~ "'" if index > 0 -%}
    {%- set before = source_position() ~ " < '" ~ starts[index] ~ "'" if index < starts | length -%}
    {%- do batches.append([after, before] | select | join(" and ") or none) -%}
  {%- endfor -%}
  {{ return(batches) }}
{% endmacro %}
