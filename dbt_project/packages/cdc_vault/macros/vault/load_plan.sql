{#-
  What a vault table has to load from each of its stages. The answer costs two small queries per model, and the load
  itself then follows the batch, not the history.

  The watermark of a stage is kept in the target's table properties, not read from its rows: a hub that sees no new key
  in a year of sales would otherwise read that year again each time. It follows publication into the lake (load_date),
  never event order, is compared with `>=`, and is remembered together with the number of rows at that moment and the
  highest source_seq so far. Where as many rows are at it as were loaded, they are the same ones and are not loaded again: a
  snapshot gives millions of rows one moment. The two tell apart, from facts and not by hope:

  - no new data: nothing after the watermark and as many rows at it as before. The load is not run at all.
  - in order: whatever is new comes after everything that was loaded. Satellites then compare the batch with what they
    hold of its keys.
  - late: anything else (a backfill, a target without a watermark, rows out of order). Satellites replay their stage for
    the keys of the batch, because an event that was rightly left out before may have to come back.

  `inputs` are names of stages, or of keys of them (`stage.src_pk`, see `inputs_of`): each has a watermark of its own.
  A table that remembers other `columns` than it has now is loaded as if it were not there (`anew`).
  A table that is to have ghost records gets them once (`ghosts`).
  One that remembers nothing although it is there (it was restored, or its first load was killed) is asked both itself.

  The plan: by input what to load (`new_data`, `late`, `rows`), `anew`, `ghosts`, and the properties to `remember`.
-#}
{% macro load_plan(inputs, src_ldts="load_date", src_seq="source_seq", src_applied="applied_date", ghosts=false, columns=none) %}
  {%- set loaded = cdc_vault.is_loaded() -%}
  {%- set before = cdc_vault.remembered_loads(loaded) -%}
  {%- set signature = local_md5((columns or []) | sort | join("|")) -%}
  {%- set redeclared = columns is not none and before.columns != signature -%}
  {%- set anew = redeclared and (before.columns is not none or (loaded and not cdc_vault.has_columns(columns))) -%}
  {%- if anew -%}{%- set loaded, before = false, {"inputs": {}, "days": none, "ghosts": false} -%}{%- endif -%}
  {%- set unsure = ghosts and not before.ghosts -%}
  {%- set plan = {
    "inputs": {}, "anew": anew, "remember": {}, "ghosts": unsure and not (loaded and cdc_vault.ghost_is_stored(src_ldts, src_seq)),
  } -%}
  {%- if redeclared -%}{%- do plan.remember.update({cdc_vault.load_property("columns"): signature}) -%}{%- endif -%}
  {%- if unsure -%}{%- do plan.remember.update({cdc_vault.load_property("ghost"): "1"}) -%}{%- endif -%}
  {%- if before.days is not none -%}
    {%- for name in inputs -%}
      {%- do plan.inputs.update({name: {"new_data": true, "late": true, "rows": cdc_vault.within_days(src_applied, before.days)}}) -%}
    {%- endfor -%}
    {{ return(plan) }}
  {%- endif -%}
  {%- for row in run_query(cdc_vault.stage_facts(inputs, before.inputs, src_ldts, src_seq)).rows -%}
    {%- set mark = before.inputs.get(row[0]) -%}
    {%- set newest, at_newest, later, at_mark, first_later, highest = row[1], row[2], row[3], row[4], row[5], row[6] -%}
    {%- set steady = mark is not none and at_mark == mark[1] | int -%}
    {%- set late = not steady or (later > 0 and first_later <= mark[2]) if loaded else false -%}
    {%- set after = src_ldts ~ (" > " if steady else " >= ") ~ "timestamp '" ~ mark[0] ~ "' and " if mark else "" -%}
    {%- set new_data = newest is not none and not (steady and later == 0) -%}
    {%- set rows = (after ~ src_ldts ~ " <= timestamp '" ~ newest ~ "'") if new_data else "false" -%}
    {%- do plan.inputs.update({row[0]: {"new_data": new_data, "late": late, "rows": rows}}) -%}
    {%- set highest = [highest, mark[2]] | max if mark and highest else highest -%}
    {%- if new_data -%}{%- do plan.remember.update({cdc_vault.load_property(row[0]): [newest, at_newest, highest] | join("|")}) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(plan) }}
{% endmacro %}

{% macro within_days(moment, days) -%}
  {{ moment }} >= timestamp '{{ days[0] }} 00:00:00 UTC' and {{ moment }} < timestamp '{{ days[1] }} 00:00:00 UTC'
{%- endmacro %}

{#- Whether the target holds rows that count; a full refresh starts over. -#}
{% macro is_loaded() %}
  {{ return(load_relation(this) is not none and not flags.FULL_REFRESH) }}
{% endmacro %}

{#- Whether the target has these columns and no others. -#}
{% macro has_columns(columns) %}
  {%- set there = cdc_vault.table_columns(this) | map(attribute="name") | sort -%}
  {{ return(there | list == columns | map("lower") | sort | list) }}
{% endmacro %}

{#- The target's rows; before it exists, or where it is made anew, none, in the stage's columns. -#}
{% macro stored_rows(stage, anew=false) -%}
  {%- if cdc_vault.is_loaded() and not anew -%}
    {{ this }}
  {%- else -%}
    (select * from {{ stage }} where false)
  {%- endif -%}
{%- endmacro %}

{#- Of one stage, all rows to load; without a plan (unit tests) everything. -#}
{% macro rows_to_load(plan, name) -%}
  {{ plan.inputs[name].rows if plan else "true" }}
{%- endmacro %}

{#- The inputs with something to load, or all where none has. -#}
{% macro with_new_data(plan, inputs) %}
  {%- set found = [] -%}
  {%- for input in inputs if plan and plan.inputs[input.name].new_data -%}
    {%- do found.append(input) -%}
  {%- endfor -%}
  {{ return(found or inputs) }}
{% endmacro %}

{#- The plan as the materialization needs it. -#}
{% macro plan_header(plan) -%}
  {%- if plan -%}
    {%- set new_data = plan.anew or plan.ghosts or plan.inputs.values() | selectattr("new_data") | list | length > 0 -%}
    {{ cdc_vault.load_header(new_data=new_data, anew=plan.anew, remember=plan.remember) }}
  {%- endif -%}
{%- endmacro %}

{% macro load_property(input) -%}
  lakehouse.loaded.{{ input }}
{%- endmacro %}

{#-
  What the target's properties say: `inputs` → [watermark, rows at it, highest source_seq], the signature of its `columns`,
  whether it has its `ghosts`; and the `days` of a backfill, the first and the one after the last, from the run's bounds.
-#}
{% macro remembered_loads(loaded) %}
  {%- set found = {"inputs": {}, "columns": none, "ghosts": false, "days": none} -%}
  {%- set prefix = cdc_vault.load_property("") -%}
  {%- set facts -%}
    select distinct 'days' as key, cast(day_from as varchar) || '|' || cast(cast(day_to + interval '1' day as date) as varchar) as value
    from {{ cdc_vault.run_bounds_relation() }}
    where invocation_id = '{{ invocation_id }}' and day_from is not null
      and created_at >= current_timestamp - interval '2' day
    {%- if loaded %}
    union all
    select key, value from {{ cdc_vault.system_table(this, "properties") }} where key like '{{ prefix }}%'
    {%- endif %}
  {%- endset -%}
  {%- for key, value in run_query(facts).rows -%}
    {%- if key == "days" -%}{%- do found.update(days=value.split("|")) -%}
    {%- elif key == cdc_vault.load_property("columns") -%}{%- do found.update(columns=value) -%}
    {%- elif key == cdc_vault.load_property("ghost") -%}{%- do found.update(ghosts=true) -%}
    {%- else -%}{%- do found.inputs.update({key.replace(prefix, "", 1): value.split("|")}) -%}
    {%- endif -%}
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
