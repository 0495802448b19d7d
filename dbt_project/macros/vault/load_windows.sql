{#-
  What a vault table has to load from each of its stages. The answer costs two small queries per model, and the load
  itself then follows the batch, not the history.

  The watermark of a stage is kept in the target's table properties, not read from its rows: a hub that sees no new key
  in a year of sales would otherwise read that year again each time. It follows publication into the lake (load_date),
  never event order, is compared with `>=`, and is remembered together with the number of rows at that moment and the
  highest source_seq so far. Where as many rows are at it as were loaded, they are the same ones and are not loaded again: a
  snapshot gives millions of rows one moment. The two tell apart, from facts and not by hope:

  - no news: nothing after the watermark and as many rows at it as before. The load is not run at all.
  - in order: whatever is new comes after everything that was loaded. Satellites then compare the batch with what they
    hold of its keys.
  - late: anything else (a backfill, a target without a watermark, rows out of order). Satellites replay their stage for
    the keys of the batch, because an event that was rightly left out before may have to come back.

  `inputs` are names of stages, or of keys of them (`stage.src_pk`, see `inputs_of`): each has a watermark of its own.
  A table that remembers other `columns` than it has now is loaded as if it were not there (`is_anew`).
  A table that has ghost records and not written them yet (`ghosts`) has news called `ghost`, once (`ghost_is_due`).
  One that remembers nothing although it is there (it was restored, or its first load was killed) is asked both itself.
-#}
{% macro load_windows(inputs, src_ldts="load_date", src_seq="source_seq", src_applied="applied_date", ghosts=false, columns=none) %}
  {%- set loaded = is_loaded() -%}
  {%- set remembered = remembered_loads(loaded) -%}
  {%- set days = remembered.pop("days", none) -%}
  {%- set windows = {} -%}
  {%- if columns is not none -%}
    {%- set signature = local_md5(columns | sort | join("|")) -%}
    {%- set before = remembered.pop("columns", [none])[0] -%}
    {%- if before != signature -%}
      {%- set anew = before is not none or (loaded and not has_columns(columns)) -%}
      {%- if anew -%}{%- set loaded, remembered, days = false, {}, none -%}{%- endif -%}
      {%- do windows.update({"columns": {"news": anew, "late": false, "rows": "false", "remember": "-- remember " ~ load_property("columns") ~ " = " ~ signature}}) -%}
    {%- endif -%}
  {%- endif -%}
  {%- if ghosts and "ghost" not in remembered -%}
    {%- set due = not (loaded and ghost_is_stored(src_ldts, src_seq)) -%}
    {%- do windows.update({"ghost": {"news": due, "late": false, "rows": "false", "remember": "-- remember " ~ load_property("ghost") ~ " = 1"}}) -%}
  {%- endif -%}
  {%- if days is not none -%}
    {%- for name in inputs -%}
      {%- do windows.update({name: {
        "news": true, "late": true, "remember": none,
        "rows": src_applied ~ " >= timestamp '" ~ days[0] ~ " 00:00:00 UTC' and " ~ src_applied ~ " < timestamp '" ~ days[1] ~ " 00:00:00 UTC'",
      }}) -%}
    {%- endfor -%}
    {{ return(windows) }}
  {%- endif -%}
  {%- for row in run_query(stage_facts(inputs, remembered, src_ldts, src_seq)).rows -%}
    {%- set before = remembered.get(row[0]) -%}
    {%- set newest, at_newest, later, at_mark, first_later, highest = row[1], row[2], row[3], row[4], row[5], row[6] -%}
    {%- set steady = before is not none and at_mark == before[1] | int -%}
    {%- set late = not steady or (later > 0 and first_later <= before[2]) if loaded else false -%}
    {%- set after = src_ldts ~ (" > " if steady else " >= ") ~ "timestamp '" ~ before[0] ~ "' and " if before else "" -%}
    {%- set news = newest is not none and not (steady and later == 0) -%}
    {%- set highest = [highest, before[2]] | max if before and highest else highest -%}
    {%- do windows.update({row[0]: {
      "news": news, "late": late,
      "rows": (after ~ src_ldts ~ " <= timestamp '" ~ newest ~ "'") if news else "false",
      "remember": "-- remember " ~ load_property(row[0]) ~ " = " ~ [newest, at_newest, highest] | join("|") if news,
    }}) -%}
  {%- endfor -%}
  {{ return(windows) }}
{% endmacro %}

{#- Whether the target holds rows that count; a full refresh starts over. -#}
{% macro is_loaded() %}
  {{ return(load_relation(this) is not none and not flags.FULL_REFRESH) }}
{% endmacro %}

{#- Whether the target is made anew, because it has other columns than it was loaded with; see append_only. -#}
{% macro is_anew(windows) %}
  {{ return(windows.columns is defined and windows.columns.news) }}
{% endmacro %}

{#- Whether the target has these columns and no others. -#}
{% macro has_columns(columns) %}
  {%- set there = table_columns(this) | map(attribute="name") | sort -%}
  {{ return(there | list == columns | map("lower") | sort | list) }}
{% endmacro %}

{#- The target's rows; before it exists, or where it is made anew, none, in the stage's columns. -#}
{% macro stored_rows(stage, anew=false) -%}
  {%- if is_loaded() and not anew -%}
    {{ this }}
  {%- else -%}
    (select * from {{ stage }} where false)
  {%- endif -%}
{%- endmacro %}

{#- Of one stage, all rows to load; before the first look (unit tests) everything. -#}
{% macro rows_to_load(windows, name) -%}
  {{ windows[name].rows if windows and name in windows else "true" }}
{%- endmacro %}

{#- Comment lines for the materialization; see append_only. -#}
{% macro load_header(windows) -%}
  {%- if windows and not windows.values() | selectattr("news") | list -%}
-- no news
  {%- elif is_anew(windows) -%}
-- anew
  {%- endif -%}
  {%- for window in (windows or {}).values() if window.remember %}
{{ window.remember }}
  {%- endfor %}
{% endmacro %}

{#- The inputs with something to load; all of them before the first look. -#}
{% macro with_news(windows, inputs) %}
  {%- set found = [] -%}
  {%- for input in inputs if not windows or windows[input.name].news -%}
    {%- do found.append(input) -%}
  {%- endfor -%}
  {{ return(found or inputs) }}
{% endmacro %}

{% macro load_property(input) -%}
  lakehouse.loaded.{{ input }}
{%- endmacro %}

{#-
  Input → [watermark, rows at it, highest source_seq], from the target's properties; and, in a backfill, "days" → its
  first day and the one after its last, from the run's bounds.
-#}
{% macro remembered_loads(loaded) %}
  {%- set found = {} -%}
  {%- set prefix = load_property("") -%}
  {%- set facts -%}
    select distinct 'days' as key, cast(day_from as varchar) || '|' || cast(cast(day_to + interval '1' day as date) as varchar) as value
    from {{ run_bounds_relation() }}
    where invocation_id = '{{ invocation_id }}' and day_from is not null
      and created_at >= current_timestamp - interval '2' day
    {%- if loaded %}
    union all
    select key, value from {{ system_table(this, "properties") }} where key like '{{ prefix }}%'
    {%- endif %}
  {%- endset -%}
  {%- for row in run_query(facts).rows -%}
    {%- do found.update({row[0].replace(prefix, "", 1): row[1].split("|")}) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- Per input: newest moment, rows at it, rows after the watermark, rows at the watermark, lowest seq after it, highest seq. -#}
{% macro stage_facts(inputs, remembered, src_ldts, src_seq) -%}
  {%- for name in inputs %}
  {{ "union all" if not loop.first }}
  {%- set mark = "timestamp '" ~ remembered[name][0] ~ "'" if name in remembered else "cast(null as timestamp(6) with time zone)" %}
  select
    '{{ name }}', cast(max(moment) as varchar), max_by(rows_there, moment),
    coalesce(sum(rows_there) filter (where moment > {{ mark }}), 0),
    coalesce(sum(rows_there) filter (where moment = {{ mark }}), 0),
    min(lowest) filter (where moment > {{ mark }}),
    max(highest)
  from (
    select {{ src_ldts }} as moment, count(*) as rows_there, min({{ src_seq }}) as lowest, max({{ src_seq }}) as highest
    from {{ ref(name.split(".")[0]) }}
    {%- if name in remembered %}
    where {{ src_ldts }} >= {{ mark }}
    {%- endif %}
    group by {{ src_ldts }}
  )
  {%- endfor %}
{%- endmacro %}
