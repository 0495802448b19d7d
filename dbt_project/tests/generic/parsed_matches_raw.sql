{#-
  Every raw row that was published up to the newest one in parsed is there exactly once, and no version of a key twice.
  Counts and an order-insensitive checksum of the positions, so that two scans of metadata columns are enough.
-#}
{% test parsed_matches_raw(model, source_name, table_name) %}
{%- set key = key_names(declared_columns(declared_table(source_name, table_name))) if execute else "" %}
with parsed_rows as (
  select count(*) as row_count, checksum({{ source_position() }}) as positions, max(_loaded_at) as newest
  from {{ model }}
  where _op <> 't'
),
raw_rows as (
  select count(*) as row_count, checksum({{ source_position() }}) as positions
  from {{ source(source_name, table_name) }}
  where _op <> 't' and _ingested_at <= (select newest from parsed_rows)
)
select 'raw and parsed differ' as problem, raw_rows.row_count as expected, parsed_rows.row_count as found
from raw_rows
cross join parsed_rows
where raw_rows.row_count <> parsed_rows.row_count or raw_rows.positions is distinct from parsed_rows.positions
union all
select 'version twice', 1, count(*)
from {{ model }}
group by {{ key }}, _epoch, _commit_lsn, _seq
having count(*) > 1
{% endtest %}
