{#- A driving key has at most one link at a time. -#}
{% test one_active_link(model, src_dfk) %}
select {{ src_dfk }}, count(*) as active_links
from {{ model }}
where is_current and is_active
group by {{ src_dfk }}
having count(*) > 1
{% endtest %}
