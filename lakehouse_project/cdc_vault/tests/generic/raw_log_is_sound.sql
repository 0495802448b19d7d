{#-
  No position twice, and every row placed: (_epoch, _commit_lsn, _seq) is the total order everything relies on. Looks at
  what was published in the last `tested_days`; a table that ingestion has not made yet has nothing wrong with it.
-#}
{% test raw_log_is_sound(model) %}
{%- if not cdc_vault.relation_exists(model) %}
select 1 where false
{%- else %}
select _epoch, _commit_lsn, _seq, count(*) as rows_there
from {{ model }}
where _ingested_at >= (select max(_ingested_at) - interval '{{ var("tested_days", 7) }}' day from {{ model }})
  or _ingested_at is null
group by _epoch, _commit_lsn, _seq
having count(*) > 1 or bool_or(_epoch is null or _commit_lsn is null or _seq is null or _ingested_at is null)
{%- endif %}
{% endtest %}
