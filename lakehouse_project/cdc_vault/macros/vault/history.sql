{#-
  A dimension with history: the timelines of several satellites of a hub laid over one another, one row per stretch of time
  in which none of them changed. `satellites`: name → its columns, NULL where that one knows nothing of the key or says that
  it is deleted. Stretches in which none of them has the key are left out. A multi-active satellite, which would multiply the
  rows of the others, is refused.
-#}
{% macro history(source_model, src_pk, src_nk, satellites) -%}
  {%- do cdc_vault.check_one_row(satellites, "a history has one") -%}
  with moments as (
    {%- for satellite in satellites %}
    {{ "union" if not loop.first }}
    select {{ src_pk }}, valid_from from {{ ref(satellite ~ "_v1") }}
    {%- endfor %}
  ),
  stretches as (
    select *, lead(valid_from) over (partition by {{ src_pk }} order by valid_from) as valid_to
    from moments
  )
  select
    hub.{{ src_pk }},
    {%- for column in cdc_vault.spelled(src_nk) %}
    hub.{{ column }},
    {%- endfor %}
    {%- for satellite, columns in satellites.items() %}
    {%- for column in cdc_vault.spelled(columns) %}
    {{ satellite }}.{{ column }},
    {%- endfor %}
    {%- endfor %}
    stretches.valid_from,
    stretches.valid_to,
    stretches.valid_to is null as is_current
  from {{ ref(source_model) }} as hub
  join stretches on stretches.{{ src_pk }} = hub.{{ src_pk }}
  {%- for satellite in satellites %}
  left join {{ ref(satellite ~ "_v1") }} as {{ satellite }}
    on {{ satellite }}.{{ src_pk }} = hub.{{ src_pk }} and not {{ satellite }}.is_deleted
    and {{ cdc_vault.valid_at(satellite, "stretches.valid_from") }}
  {%- endfor %}
  where {% for satellite in satellites %}{{ "or " if not loop.first }}{{ satellite }}.{{ src_pk }} is not null {% endfor %}
{%- endmacro %}
