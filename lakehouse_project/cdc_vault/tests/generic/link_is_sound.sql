{#-
  Each combination once and under one hash, and every key it names is in its hub; the zero and the error key (a reference
  that is NULL or wrong) are in none. `dependent`: columns that tell links of the same keys apart.
-#}
{% test link_is_sound(model, src_pk, hubs, dependent=[]) %}
select 'link twice' as problem, {{ src_pk }} as example
from {{ model }}
group by {{ src_pk }}
having count(*) > 1
union all
select 'one combination, two hashes', min({{ src_pk }})
from {{ model }}
where {{ cdc_vault.is_known(src_pk) }}
group by {{ (hubs | list + cdc_vault.spelled(dependent)) | join(", ") }}
having count(distinct {{ src_pk }}) > 1
{{- cdc_vault.orphans(model, hubs) }}
{% endtest %}
