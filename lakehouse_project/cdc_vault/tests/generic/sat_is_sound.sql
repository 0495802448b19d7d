{#-
  Each event of a key once (`src_cdk`: the child's key of a multi-active satellite), every key in its parent hub or link,
  nothing about the zero key but the ghost record, and one state per hashdiff of a key (`payload`, where given).
-#}
{% test sat_is_sound(model, src_pk, parent, src_cdk=[], parent_pk=none, src_hashdiff=none, payload=[]) %}
select 'event twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ ([src_pk] + cdc_vault.spelled(src_cdk)) | join(", ") }}, source_seq
having count(*) > 1
union all
select 'not in {{ parent }}', {{ src_pk }}
from {{ model }}
where record_source <> 'ghost' and {{ src_pk }} not in (select {{ parent_pk or src_pk }} from {{ ref(parent) }})
{%- if payload %}
union all
select 'one hashdiff, two states', min({{ src_pk }})
from {{ model }}
where not is_deleted
group by {{ src_hashdiff }}
having
  {%- for column in cdc_vault.spelled(payload) %}
  {{ "or" if not loop.first }} count(distinct {{ column }}) > 1
  {%- endfor %}
{%- endif %}
{% endtest %}
