{#- No position twice, and every row placed: (_epoch, _commit_lsn, _seq) is the total order everything relies on. -#}
{% test raw_log_is_sound(model) %}
select _epoch, _commit_lsn, _seq, count(*) as rows_there
from {{ model }}
group by _epoch, _commit_lsn, _seq
having count(*) > 1 or bool_or(_epoch is null or _commit_lsn is null or _seq is null or _ingested_at is null)
{% endtest %}
