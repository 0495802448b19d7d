{#-
  Every raw row that was published up to the newest one in parsed is there exactly once, and no version of a key twice.
  Counts and an order-insensitive checksum of the positions, so that two scans of metadata columns are enough; over what
  was published in the last `tested_days` before it.
-#}
{% test parsed_matches_raw(model, source_name, table_name) %}
{%- set raw = source(source_name, table_name) %}
{%- if not cdc_vault.relation_exists(raw) %}
select 1 where false
{%- else %}
{%- set key = cdc_vault.key_names(cdc_vault.declared_columns(cdc_vault.declared_table(source_name, table_name))) %}
with span as (
  select max(_loaded_at) as newest, max(_loaded_at) - interval '{{ var("tested_days", 7) }}' day as oldest
  from {{ model }}
),
versions as (
  select {{ key }}, _epoch, _commit_lsn, _seq, _op {#- names that no column of the source has #}
  from {{ model }}
  where _loaded_at >= (select oldest from span)
),
parsed_rows as (
  select count(*) as row_count, checksum({{ cdc_vault.source_position() }}) as positions
  from versions
  where _op <> 't'
),
raw_rows as (
  select count(*) as row_count, checksum({{ cdc_vault.source_position() }}) as positions
  from {{ raw }}
  where _op <> 't' and _ingested_at between (select oldest from span) and (select newest from span)
)
select 'raw and parsed differ' as problem, raw_rows.row_count as expected, parsed_rows.row_count as found
from raw_rows
cross join parsed_rows
where raw_rows.row_count <> parsed_rows.row_count or raw_rows.positions is distinct from parsed_rows.positions
union all
select 'version twice', 1, count(*)
from versions
group by {{ key }}, _epoch, _commit_lsn, _seq
having count(*) > 1
{%- endif %}
{% endtest %}
