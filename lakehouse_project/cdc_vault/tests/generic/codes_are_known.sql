{#-
  Counts rows that a stage published in the last `tested_days` with a code that the reference table has never had; a code of
  which a column is NULL is none. `codes`: the `columns`, the reference table's `model` and its key `src_pk`, and whether
  they are compared `as_text`. A warning: the reference table may be loaded later.
-#}
{% test codes_are_known(model, codes) %}
{{ config(severity="warn", fail_calc="coalesce(sum(rows_there), 0)") }}
{%- for code in codes %}
{%- set columns, keys = cdc_vault.spelled(code.columns), cdc_vault.spelled(code.src_pk) %}
{{ "union all" if not loop.first }}
select {{ cdc_vault.sql_text(code.columns | join(", ") ~ " is not in " ~ code.model) }} as problem, record_source, count(*) as rows_there
from {{ model }} as stage
where not is_deleted
  and load_date >= (select max(load_date) - interval '{{ var("tested_days", 7) }}' day from {{ model }})
  and {{ columns | join(" is not null and ") }} is not null
  and not exists (
    select 1 from {{ ref(code.model) }} as codes
    where not codes.is_deleted
    {%- for column in columns %}
      and {{ cdc_vault.code_text("codes." ~ keys[loop.index0], code.as_text) }} = {{ cdc_vault.code_text("stage." ~ column, code.as_text) }}
    {%- endfor %}
  )
group by record_source
{%- endfor %}
{% endtest %}
