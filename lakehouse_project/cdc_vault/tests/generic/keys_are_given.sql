{#-
  Counts what a stage published in the last `tested_days` with keys that are not given: rows whose own key is NULL (the zero
  key) or declared wrong (the error key), which are in no hub and no satellite; rows whose own key is blank in all of its
  columns `src_nk`, which is kept; and `references` that are declared wrong. A reference that is NULL is none of these. Of keys
  published then, it also counts the rows that share theirs with another row of the table (`rows_of_one_key`). A warning: the
  policy has dealt with them.
-#}
{% test keys_are_given(model, src_pk=none, src_nk=[], references=[]) %}
{{ config(severity="warn", fail_calc="coalesce(sum(rows_there), 0)") }}
{%- set problems = {} -%}
{%- if src_pk -%}{%- do problems.update({src_pk ~ " is not given": "not (" ~ cdc_vault.is_known(src_pk) ~ ")"}) -%}{%- endif -%}
{%- if src_nk -%}
  {%- set blanks = [cdc_vault.is_known(src_pk)] -%}
  {%- for column in cdc_vault.spelled(src_nk) -%}{%- do blanks.append("coalesce(trim(cast(" ~ column ~ " as varchar)), '') = ''") -%}{%- endfor -%}
  {%- do problems.update({src_pk ~ " is blank": blanks | join(" and ")}) -%}
{%- endif -%}
{%- for key in references -%}{%- do problems.update({key ~ " is wrong": key ~ " = " ~ cdc_vault.error_key()}) -%}{%- endfor -%}
{%- for problem, condition in problems.items() %}
{{ "union all" if not loop.first }}
select '{{ problem }}' as problem, record_source, count(*) as rows_there
from {{ model }}
where {{ condition }}
  and {{ cdc_vault.published_lately(model) }}
group by record_source
{%- endfor %}
{%- set shared = cdc_vault.rows_of_one_key(model, model.identifier, src_pk) | trim if execute and src_pk -%}
{%- if shared %}
union all
select '{{ src_pk }} is that of several rows' as problem, record_source, count(*) as rows_there
from ({{ shared }})
group by record_source
{%- endif %}
{% endtest %}
