{#- Each event of a key once, every key in its parent hub or link. -#}
{% test sat_is_sound(model, src_pk, parent) %}
select 'event twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}, source_seq
having count(*) > 1
union all
select 'not in {{ parent }}', {{ src_pk }}
from {{ model }}
where {{ src_pk }} not in (select {{ src_pk }} from {{ ref(parent) }})
{% endtest %}
