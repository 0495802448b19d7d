{#- Each key once; one business key per hash and one hash per business key, so no collision and no second spelling. -#}
{% test hub_is_sound(model, src_pk, src_nk) %}
{%- set business_key = ([src_nk] if src_nk is string else src_nk) | join(", ") %}
select 'hash key twice' as problem, {{ src_pk }} as example, count(*) as rows_there
from {{ model }}
group by {{ src_pk }}
having count(*) > 1 or {{ src_pk }} is null
union all
select 'business key twice', min({{ src_pk }}), count(*)
from {{ model }}
where {{ is_known(src_pk) }}
group by {{ business_key }}
having count(*) > 1
{% endtest %}
