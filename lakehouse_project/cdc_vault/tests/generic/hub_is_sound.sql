{#-
  Each key once, and one hash per business key (and collision code, `src_code`, where the hub has them), so no second
  spelling. A collision does not show in the hub, which keeps the first key of a hash: so what `stage` published in the
  last `tested_days` is compared with it (as hashed: `normalize`, and `types`, column → type in Postgres, where equal
  values are kept as different texts).
-#}
{% test hub_is_sound(model, src_pk, src_nk, stage=none, normalize=none, types={}, src_code=none) %}
{%- set business_key = cdc_vault.spelled(src_nk) | join(", ") %}
select 'hash key twice' as problem, {{ src_pk }} as example, count(*) as rows_there
from {{ model }}
group by {{ src_pk }}
having count(*) > 1 or {{ src_pk }} is null
union all
select 'business key twice', min({{ src_pk }}), count(*)
from {{ model }}
where {{ cdc_vault.is_known(src_pk) }}
group by {{ business_key }}{{ ", " ~ src_code if src_code }}
having count(*) > 1
{%- if stage %}
union all
select 'one hash, two business keys', {{ src_pk }}, count(*)
from {{ ref(stage) }} as stage
join {{ model }} as hub using ({{ src_pk }})
where {{ cdc_vault.is_known(src_pk) }}
  and stage.load_date >= (select max(load_date) - interval '{{ var("tested_days", 7) }}' day from {{ ref(stage) }})
  and (
    {%- for name in cdc_vault.as_list(src_nk) %}
    {%- set column, type = cdc_vault.spelled(name)[0], types.get(name) %}
    {{ "or" if not loop.first }} {{ cdc_vault.as_hashed("stage." ~ column, normalize, type) }} is distinct from {{ cdc_vault.as_hashed("hub." ~ column, normalize, type) }}
    {%- endfor %}
  )
group by {{ src_pk }}
{%- endif %}
{% endtest %}
