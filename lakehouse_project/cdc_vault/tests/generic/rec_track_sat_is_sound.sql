{#- Each mention once, of keys that are in the hub. -#}
{% test rec_track_sat_is_sound(model, src_pk, parent) %}
select 'mention twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}, load_date, record_source
having count(*) > 1
union all
select 'not in {{ parent }}', {{ src_pk }}
from {{ model }}
where {{ src_pk }} not in (select {{ src_pk }} from {{ ref(parent) }})
{% endtest %}
