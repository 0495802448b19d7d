{#- Each combination once, and every key it names is in its hub; the zero key (a NULL reference) is in none. -#}
{% test link_is_sound(model, src_pk, hubs) %}
select 'link twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}
having count(*) > 1
{%- for column, hub in hubs.items() %}
union all
select 'not in {{ hub }}', {{ column }}
from {{ model }}
where {{ column }} <> {{ zero_key() }} and {{ column }} not in (select {{ column }} from {{ ref(hub) }})
{%- endfor %}
{% endtest %}
