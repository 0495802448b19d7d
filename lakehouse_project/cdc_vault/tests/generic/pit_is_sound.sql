{#- A key once per moment, and every satellite row it names is there. -#}
{% test pit_is_sound(model, src_pk, satellites, src_snapshot="sdts") %}
select 'moment twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}, {{ src_snapshot }}
having count(*) > 1
{%- for satellite in satellites %}
union all
select 'not in {{ satellite }}', pit.{{ src_pk }}
from {{ model }} as pit
left join {{ ref(satellite) }} as satellite
  on satellite.{{ src_pk }} = pit.{{ satellite }}_hk and satellite.source_seq = pit.{{ satellite }}_seq
where satellite.{{ src_pk }} is null
{%- endfor %}
{% endtest %}
