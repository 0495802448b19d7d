{#-
  What has arrived in a raw table since its parsed table was last loaded, in at most three small queries.

  Normally: rows published at or after the newest one that is there (`>=`: rows of one moment may come in two loads), up
  to the run's cut. The watermark follows publication into the lake, never event order. What was published after a row
  beyond the cut waits with it, though it is before the cut itself, as a dead letter that was replayed meanwhile: it would
  move the watermark past that row. So does what is published after the first look. In a backfill: rows committed on
  the days asked for and published up to the watermark. Newer ones are left to the next load, or they would move the
  watermark past rows of other days. In both cases what is there already is left out. Without a watermark (`newest`) it is
  the whole history, in a backfill too.
-#}
{% macro new_raw_rows(source_name, table_name, raw, columns, newest) %}
  {%- set bounds = cdc_vault.run_bounds(source_name) -%}
  {%- if bounds is none or bounds.epoch is none or table_name not in bounds.tables -%}
    {{ return(none) }}
  {%- endif -%}
  {%- set backfill = newest is not none and bounds.day_from is not none -%}
  {%- set reach = "(_epoch < " ~ bounds.epoch ~ " or (_epoch = " ~ bounds.epoch ~ " and _commit_lsn <= " ~ bounds.cut_lsn ~ "))" -%}
  {%- set since, known = "true", none -%}
  {%- if backfill -%}
    {%- set days = ["timestamp '" ~ bounds.day_from ~ " 00:00:00 UTC'", "timestamp '" ~ bounds.day_after ~ " 00:00:00 UTC'"] -%}
    {%- set reach = "_ingested_at <= timestamp '" ~ newest ~ "' and " ~ reach -%}
    {%- set since = "_committed_at >= " ~ days[0] ~ " and _committed_at < " ~ days[1] -%}
    {%- set known = "_lh_known._valid_from >= " ~ days[0] ~ " and _lh_known._valid_from < " ~ days[1] -%}
  {%- elif newest is not none -%}
    {%- set since = "_ingested_at >= timestamp '" ~ newest ~ "'" -%}
    {%- set known = "_lh_known._loaded_at >= timestamp '" ~ newest ~ "'" -%}
  {%- endif -%}

  {%- set mark = none if backfill else newest -%}
  {%- set given = cdc_vault.given_raw_facts() if mark else none -%}
  {%- set found = run_query(cdc_vault.raw_facts(raw, since, reach, mark)).rows[0] if given is none else given.facts -%}
  {%- if not backfill and found[6] and found[7] and found[7] < found[6] -%}
    {%- set since = since ~ " and _ingested_at <= timestamp '" ~ found[7] ~ "'" -%}
    {%- set found = run_query(cdc_vault.raw_facts(raw, since, reach, mark)).rows[0] -%}
  {%- endif -%}
  {%- set rows, truncates, unchanged, moves, later, known_now, seen = found[0], found[1], found[2], found[3], found[4], found[5], found[6] -%}
  {%- set window = since ~ " and " ~ reach ~ (" and _ingested_at <= timestamp '" ~ seen ~ "'" if seen else "") -%}
  {%- if not rows and not truncates or mark and not later and not truncates and rows == known_now -%}
    {{ return(none) }}
  {%- endif -%}
  {%- set unchanged = fromjson(unchanged) if unchanged else [] -%}
  {%- set columns = cdc_vault.with_former_names(raw, columns, unchanged) -%}
  {{ return({
    "columns": columns,
    "window": window,
    "known": known,
    "truncated": reach if backfill else window,
    "unchanged": unchanged,
    "moves": moves > 0,
    "roots": cdc_vault.chained_key_changes(raw, columns, window) if moves else {},
    "truncates": truncates > 0,
    "landed_late": found[8],
    "handed": given is not none and cdc_vault.is_handed("_lh_raw_" ~ model.name),
  }) }}
{% endmacro %}

{#-
  What `LAKEHOUSE_RAW_FACTS` (JSON: by parsed table) gives to who has looked already: the `newest` moment in the table, the `facts`
  that `raw_facts` asks for; none where nobody has.
-#}
{% macro given_raw_facts() %}
  {{ return(fromjson(env_var("LAKEHOUSE_RAW_FACTS", "{}")).get(this.schema ~ "." ~ this.identifier)) }}
{% endmacro %}

{#-
  Of the rows within reach: how many there are, truncates, columns that some row lacks, key changes among those rows, rows
  newer than the watermark, rows at it that are there, and the newest moment. And the oldest moment of a row that is not, and
  the one at which rows last landed late, as ingestion says in a property.
-#}
{% macro raw_facts(raw, since, reach, mark) %}
  select
    count_if(_op <> 't' and _lh_in_reach),
    count_if(_op = 't' and _lh_in_reach),
    json_format(cast(array_distinct(flatten(array_agg(_unchanged) filter (where _unchanged is not null and _lh_in_reach))) as json)),
    count_if(_unchanged is not null and _old_key is not null and _lh_in_reach),
    {% if mark -%}
    count_if(_ingested_at > timestamp '{{ mark }}' and _lh_in_reach),
    (select count(*) from {{ this }} where _loaded_at = timestamp '{{ mark }}' and _op <> 't'),
    {%- else -%}
    count_if(_lh_in_reach), 0,
    {%- endif %}
    cast(max(_ingested_at) filter (where _lh_in_reach) as varchar),
    cast(min(_ingested_at) filter (where not _lh_in_reach) as varchar),
    (select max(value) from {{ cdc_vault.system_table(raw, "properties") }} where key = 'lakehouse.landed-late-at')
  from (
    select _op, _unchanged, _old_key, _ingested_at, {{ reach }} as _lh_in_reach
    from {{ raw }}
    where {{ since }}
  )
{% endmacro %}
