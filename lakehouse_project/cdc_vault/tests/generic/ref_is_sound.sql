{#- Each event of a code once, and no code without a name. -#}
{% test ref_is_sound(model, src_pk) %}
{%- set keys = cdc_vault.spelled(src_pk) %}
select {{ keys | join(", ") }}, source_seq, count(*) as rows_there
from {{ model }}
group by {{ keys | join(", ") }}, source_seq
having count(*) > 1 or {{ keys | join(" is null or ") }} is null
{% endtest %}
