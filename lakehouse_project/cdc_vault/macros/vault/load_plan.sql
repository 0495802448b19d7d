{#-
  What a vault table has to load from each of its stages. Without new data the answer costs one query of metadata per model,
  with new data one more per stage that counts, and the load itself then follows the batch, not the history.

  The watermark of a stage is kept in the target's table properties, not read from its rows: a hub that sees no new key
  in a year of sales would otherwise read that year again each time. It follows publication into the lake (load_date),
  never event order, is compared with `>=`, and is remembered together with the number of rows at that moment, the
  highest source_seq so far, and the snapshots of what the stage reads. Where those are the same there is nothing to ask.
  Where as many rows are at the watermark as were loaded, they are the same ones and are not loaded again: a
  snapshot gives millions of rows one moment. These facts tell apart:

  - no new data: nothing after the watermark and as many rows at it as before. The load is not run at all.
  - in order: whatever is new comes after everything that was loaded. Satellites then compare the batch with what they
    hold of its keys.
  - late: anything else (a backfill, a target without a watermark, rows out of order). Satellites replay their stage for
    the keys of the batch, because an event that was rightly left out before may have to come back.

  `inputs` are names of stages, or of keys of them (`stage.src_pk`, see `inputs_of`): each has a watermark of its own.
  A table that remembers other `columns` than it has now is loaded as if it were not there (`anew`), and so is one whose stage
  makes its `keys` (by input, columns of the stage) of something else: the hashes of its rows would meet no others. Of one
  that remembers nothing of its keys, the rows are looked at, and for the table's own key those alone that are
  `key_rows` (the end of a link is stored with the event that ended it).
  So is one that was loaded from a table before rows of that were `revised`. One of `keys_only` is not replaced then: all is
  compared with it again. Where a table is made anew, the rows of which its stages say nothing (`carried`) count as stored, and
  stay, or the load is refused.
  A table that is to have ghost records gets them once (`ghosts`). `hashed` is a column of hashes, the key of ghost records: with
  another hash function no key would be found again, so a load refuses a table that was hashed by another one.
  What is remembered counts while the target still descends from the snapshot it was remembered with, which expiry keeps
  (those back to the newest data stay): after `rollback_to_snapshot`, or a replacement by an earlier state, everything is
  compared again. One that remembers nothing
  although it is there (it was restored, or its first load was killed) is asked both itself.

  The plan: by input what to load (`new_data`, `late`, `rows`), `anew`, the query of rows that are `carried`, `ghosts` (the keys of those to add), the properties to `remember`, and the
  target's snapshot that all this is true of (`base`).
-#}
{% macro load_plan(inputs, src_ldts="load_date", src_seq="source_seq", src_applied="applied_date", src_source="record_source", ghosts=false, columns=none, hashed=none, keys={}, key_rows="true", keys_only=false) %}
  {%- set loaded = cdc_vault.is_loaded() -%}
  {%- set seen = {} -%}
  {%- set stages = cdc_vault.without_awaited(cdc_vault.tables_of_stages(inputs), seen) -%}
  {%- set keys = cdc_vault.keys_loaded(keys, stages) -%}
  {%- set before = cdc_vault.remembered_loads(loaded, stages) -%}
  {%- set function = var("vault_hash", "md5") -%}
  {%- if loaded and before.hash != function -%}{%- do cdc_vault.check_hash(hashed, function) -%}{%- endif -%}
  {%- set floats = cdc_vault.floats_hashed(inputs, columns or []) -%}
  {%- set former, signature = cdc_vault.column_signature(columns or []), cdc_vault.column_signature(columns or [], floats) -%}
  {%- set redeclared = columns is not none and before.columns != signature -%}
  {%- set signatures = cdc_vault.key_signatures(keys) -%}
  {%- set may_fit = loaded and (not redeclared or (before.columns in (none, "of another state", former) and cdc_vault.has_columns(columns) and cdc_vault.has_doubles(floats))) -%}
  {%- set anew = redeclared and not (may_fit and before.columns == former) and (before.columns is not none or (loaded and not may_fit)) -%}
  {%- if not loaded or redeclared or (signatures and before.get("keys") != signatures) -%}{%- do cdc_vault.check_stages(inputs, seen) -%}{%- endif -%}
  {%- set unseen = before.revised_now.items() | reject("in", before.revised.items()) | list -%}
  {%- set revised = loaded and unseen | length > 0 -%}
  {%- set keys_unknown = before.get("keys") is none -%}
  {%- set other_keys = loaded and not (anew and keys_unknown) and cdc_vault.has_other_keys(before.get("keys"), signatures, keys, hashed, src_seq, key_rows) -%}
  {%- set anew = anew or other_keys or (revised and not keys_only) -%}
  {%- set carried = cdc_vault.carried_rows(inputs, src_ldts, src_source, keys_only) if loaded and anew else none -%}
  {%- if carried -%}
    {%- set carried = cdc_vault.carried_as_declared(carried, inputs, columns if redeclared else none, keys_only, other_keys and not keys_unknown) -%}
  {%- endif -%}
  {%- if revised or anew -%}{%- set before = dict(before, inputs={}, days=none) -%}{%- endif -%}
  {%- if anew -%}{%- set loaded, before = false, dict(before, ghosts=false) -%}{%- endif -%}
  {%- set unsure = ghosts and not before.ghosts -%}
  {%- set plan = {
    "inputs": {}, "anew": anew, "carried": carried, "revised": revised and anew, "remember": {}, "ghosts": cdc_vault.missing_ghosts(loaded, hashed, src_ldts, src_seq) if unsure else [],
    "base": before.base if loaded else none,
  } -%}
  {%- set marks = {} -%}
  {%- if before.days is not none -%}
    {%- for name in inputs -%}
      {%- do plan.inputs.update({name: {"new_data": true, "late": true, "rows": cdc_vault.within_days(src_applied, before.days)}}) -%}
      {%- if name in before.inputs -%}{%- do marks.update({name: {"values": before.inputs[name], "is_new": true}}) -%}{%- endif -%}
    {%- endfor -%}
  {%- else -%}
    {%- do marks.update(cdc_vault.plan_inputs(plan, inputs, before, loaded, src_ldts, src_seq, stages)) -%}
  {%- endif -%}
  {%- if redeclared or unsure or before.hash != function or (signatures and before.get("keys") != signatures) or unseen or marks.values() | selectattr("is_new") | list -%}
    {%- do cdc_vault.plan_memory(plan, marks, signature if columns is not none else none, ghosts, function, signatures, before.revised_now) -%}
  {%- endif -%}
  {{ return(plan) }}
{% endmacro %}

{#- What is remembered of a table's columns; an earlier release, which hashed a `real` by seven digits, did not tell `floats`. -#}
{% macro column_signature(columns, floats=[]) %}
  {%- set told = [] -%}
  {%- for name in floats -%}{%- do told.append("!float " ~ name) -%}{%- endfor -%}
  {{ return(local_md5((columns + told) | sort | join("|"))) }}
{% endmacro %}

{#- Adds to the plan what to remember: all of it at once, or some of it would name a snapshot that expires while loads go on. -#}
{% macro plan_memory(plan, marks, signature, ghosts, function, signatures, revised) %}
  {%- do plan.remember.update({cdc_vault.load_property("hash"): function}) -%}
  {%- if signatures -%}{%- do plan.remember.update({cdc_vault.load_property("keys"): tojson(signatures)}) -%}{%- endif -%}
  {%- if revised -%}{%- do plan.remember.update({cdc_vault.load_property("revised"): tojson(revised)}) -%}{%- endif -%}
  {%- for name, mark in marks.items() -%}
    {%- do plan.remember.update({cdc_vault.load_property(name): mark["values"] | join("|")}) -%}
  {%- endfor -%}
  {%- if signature is not none -%}{%- do plan.remember.update({cdc_vault.load_property("columns"): signature}) -%}{%- endif -%}
  {%- if ghosts -%}{%- do plan.remember.update({cdc_vault.load_property("ghost"): "2"}) -%}{%- endif -%}
{% endmacro %}

{#- Stops the load of a table whose keys are of another hash function; they are as long as those of the ghost records. -#}
{% macro check_hash(hashed, function) %}
  {%- for row in run_query("select length(" ~ hashed ~ ") from " ~ this ~ " limit 1").rows if row[0] != cdc_vault.hash_length() -%}
    {{ exceptions.raise_compiler_error(
      this ~ " has keys of another hash function than vars.vault_hash, which is " ~ function
      ~ ": set it back, or build the vault anew with `lakehouse rehash` (with dbt alone: --full-refresh)"
    ) }}
  {%- endfor -%}
{% endmacro %}

{#- Adds to the plan what each input has to load, and returns what is to be remembered of it, and whether that is new. -#}
{% macro plan_inputs(plan, inputs, before, loaded, src_ldts, src_seq, stages) %}
  {%- set asked, marks, seen = [], {}, {} -%}
  {%- for name in inputs -%}
    {%- set mark = before.inputs.get(name) -%}
    {%- if mark and before.states.get(name) and mark[3] == before.states[name] -%}
      {%- do plan.inputs.update({name: {"new_data": false, "late": false, "rows": "false", "count": 0}}) -%}
      {%- do marks.update({name: {"values": mark, "is_new": false}}) -%}
    {%- else -%}
      {%- do asked.append(name) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- for row in cdc_vault.facts_of_stages(asked, before.inputs, before.states, src_ldts, src_seq) if asked -%}
    {%- set mark, state = before.inputs.get(row[0]), before.states.get(row[0], "") -%}
    {%- set newest, at_newest, later, at_mark, first_later, highest = row[1], row[2], row[3], row[4], row[5], row[6] -%}
    {%- if newest is none -%}{%- do cdc_vault.check_awaited(row[0], stages.get(row[0], {}).tables, seen) -%}{%- endif -%}
    {%- set steady = mark is not none and at_mark == mark[1] | int -%}
    {%- set late = not steady or (later > 0 and first_later <= mark[2]) if loaded else false -%}
    {%- set after = src_ldts ~ (" > " if steady else " >= ") ~ "timestamp '" ~ mark[0] ~ "' and " if mark else "" -%}
    {%- set new_data = newest is not none and not (steady and later == 0) -%}
    {%- set rows = (after ~ src_ldts ~ " <= timestamp '" ~ newest ~ "'") if new_data else "false" -%}
    {%- set count = later + (0 if steady else at_mark) if mark is not none else cdc_vault.many_rows() -%}
    {%- set few = mark is not none and count <= cdc_vault.few_rows() -%}
    {%- do plan.inputs.update({row[0]: {"new_data": new_data, "late": late, "rows": rows, "few": few, "count": count, "handed": not late and cdc_vault.is_stage_handed(row[0], mark)}}) -%}
    {%- set highest = [highest, mark[2]] | max if mark and highest else highest -%}
    {%- if new_data -%}
      {%- do marks.update({row[0]: {"values": [newest, at_newest, highest, state], "is_new": true}}) -%}
    {%- elif steady -%}
      {%- do marks.update({row[0]: {"values": mark[:3] + [state], "is_new": mark[3] != state}}) -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(marks) }}
{% endmacro %}

{% macro within_days(moment, days) -%}
  {{ moment }} >= timestamp '{{ days[0] }} 00:00:00 UTC' and {{ moment }} < timestamp '{{ days[1] }} 00:00:00 UTC'
{%- endmacro %}

{#- Whether the target holds rows that count; a full refresh, by its flag or the model's config, starts over. -#}
{% macro is_loaded() %}
  {{ return(cdc_vault.existing_relation(this) is not none and not should_full_refresh()) }}
{% endmacro %}

{#- Whether the target has these columns and no others. -#}
{% macro has_columns(columns) %}
  {%- set there = cdc_vault.table_columns(this) | map(attribute="name") | sort -%}
  {{ return(there | list == columns | map("lower") | sort | list) }}
{% endmacro %}

{#- The target's rows; before it exists, or where it is made anew, none, in the stage's columns, but those that are carried over. -#}
{% macro stored_rows(stage, plan=none) -%}
  {%- if plan and plan.carried -%}
    ({{ plan.carried }})
  {%- elif cdc_vault.is_loaded() and not (plan and plan.anew) -%}
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

{#- Whether all that these inputs have to load is a few rows. -#}
{% macro is_few(plan, inputs) %}
  {%- set many = [] -%}
  {%- for input in inputs if not plan or not plan.inputs[input.name].few -%}{%- do many.append(input) -%}{%- endfor -%}
  {{ return(not many) }}
{% endmacro %}

{#- As many keys as a join hands to the other side's scan by value. -#}
{% macro few_rows() %}
  {{ return(100) }}
{% endmacro %}

{#- Of a batch of which this many rows may come, no two are compared before they are in the table. -#}
{% macro many_rows() %}
  {{ return(1000000) }}
{% endmacro %}

{#- The plan as the materialization needs it, of a model that makes these columns (`check_listed`). -#}
{% macro plan_header(plan, made, taken={}, stored=none) -%}
  {%- if plan -%}
    {%- set checks = cdc_vault.batch_checks() if plan.inputs.values() | map(attribute="count", default=cdc_vault.many_rows()) | sum < cdc_vault.many_rows() else none -%}
    {%- set new_data = plan.anew or should_full_refresh() or plan.ghosts | length > 0 or plan.inputs.values() | selectattr("new_data") | list | length > 0 -%}
    {%- do cdc_vault.check_listed(made, taken, adds=new_data and plan.base is not none) -%}
    {{ cdc_vault.load_header(new_data=new_data, anew=plan.anew, remember=plan.remember, base=plan.base, more=dict(checks=checks, revised=plan.revised, **({"stored": stored} if stored else {}))) }}
  {%- endif -%}
{%- endmacro %}

{% macro load_property(input) -%}
  lakehouse.loaded.{{ input }}
{%- endmacro %}

{#- By input, the `tables` that its stage reads, and whether they are the `whole` of it. -#}
{% macro tables_of_stages(inputs) %}
  {%- set found = {} -%}
  {%- for name in inputs -%}
    {%- for id in model.depends_on.nodes if id.split(".")[-1] == name.split(".")[0] -%}
      {%- do found.update({name: cdc_vault.tables_read(id)}) -%}
    {%- endfor -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- The text of a stage's view in Trino. `seen` keeps it by stage: a hub takes several keys of one, and one plan asks several things of it. -#}
{% macro view_seen(stage, seen) %}
  {%- if stage not in seen -%}{%- do seen.update({stage: cdc_vault.view_text(ref(stage))}) -%}{%- endif -%}
  {{ return(seen[stage]) }}
{% endmacro %}

{#-
  The same without the tables that are not there, where their stages wait for the first load of these (`is_awaited`): nothing is
  remembered of such an input, and all that it brings later is loaded. Refused is what was loaded from such a table, which
  somebody has dropped: it would go on without its rows, and nobody would be told. So is what has nothing to be loaded from.
-#}
{% macro without_awaited(stages, seen={}) %}
  {%- set found, missing, given, known = {}, {}, fromjson(env_var("LAKEHOUSE_TABLE_STATES", "{}")), {} -%}
  {%- for table in stages.values() | sum(attribute="tables", start=[]) if table | string not in known -%}
    {%- do known.update({table | string: table.schema ~ "." ~ table.identifier in given or cdc_vault.is_there(table)}) -%}
  {%- endfor -%}
  {%- for name, read in stages.items() -%}
    {%- set there = [] -%}
    {%- for table in read.tables -%}
      {%- if known[table | string] -%}{%- do there.append(table) -%}{%- else -%}{%- do missing.setdefault(name, table) -%}{%- endif -%}
    {%- endfor -%}
    {%- do found.update({name: dict(read, tables=there, whole=read.whole and name not in missing, awaited=name in missing)}) -%}
  {%- endfor -%}
  {%- set known = cdc_vault.inputs_known() if missing else [] -%}
  {%- for name, table in missing.items() -%}
    {%- set stage = name.split(".")[0] -%}
    {%- if missing | length == stages | length or stage in known or stages[name].tables | length > 1 or not cdc_vault.waits_for_table(stage, seen) -%}
      {{ exceptions.raise_compiler_error(
        this ~ ": " ~ table ~ ", which " ~ stage ~ " reads, is not there: run the load job of its raw table, which makes it of raw, then load this again"
      ) }}
    {%- endif -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- The keys without those of inputs that were never loaded: what they are made of may be declared otherwise until then. -#}
{% macro keys_loaded(keys, stages) %}
  {%- set found = {} -%}
  {%- for name, columns in keys.items() if not stages.get(name, {}).get("awaited") -%}{%- do found.update({name: columns}) -%}{%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- Whether the view of a stage in Trino is one from before the first load of its table. -#}
{% macro waits_for_table(stage, seen={}) %}
  {%- for id in model.depends_on.nodes if id.split(".")[-1] == stage and id in graph.nodes and graph.nodes[id].config.materialized == "view" -%}
    {{ return(cdc_vault.said_by_stage(stage).hashed_keys is defined and cdc_vault.shows_no_table(cdc_vault.view_seen(stage, seen))) }}
  {%- endfor -%}
  {{ return(false) }}
{% endmacro %}

{#- The stages that the target has ever loaded rows of, also in a state that it was put back from, or before a full refresh. -#}
{% macro inputs_known() %}
  {%- set found, prefix = [], cdc_vault.load_property("") -%}
  {%- set there = cdc_vault.existing_relation(this) -%}
  {%- for row in (run_query("select key from " ~ cdc_vault.system_table(this, "properties") ~ " where key like '" ~ prefix ~ "%'").rows if there is not none and not there.is_view else []) -%}
    {%- do found.append(row[0].replace(prefix, "", 1).split(".")[0]) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  Refuses to load from a stage without rows whose view is still that of before the first load, though its table is there: the load of that
  makes the view, and may have been killed in between.
-#}
{% macro check_awaited(name, tables, seen={}) %}
  {%- set stage = name.split(".")[0] -%}
  {%- if tables and cdc_vault.waits_for_table(stage, seen) -%}
    {{ exceptions.raise_compiler_error(
      this ~ ": the view " ~ ref(stage) ~ " is of before the first load of " ~ tables[0] ~ ", and shows none of its rows. Make it first, by the load job or"
      ~ " `dbt run --select " ~ stage ~ "`, then load this again"
    ) }}
  {%- endif -%}
{% endmacro %}

{#-
  What the target's properties say, as far as it counts: `inputs` → [watermark, rows at it, highest source_seq, snapshots of
  the stage], the signature of its `columns` and of its `keys`, whether it has its `ghosts`, its function of `hash`, and when the tables below were
  `revised` that it was loaded from. Beside it the `days` of a backfill, the first and the
  one after the last, from the run's bounds; the snapshots of the stages now (`states`), when the tables below were `revised_now`, and the
  target's snapshot (`base`).

  A value ends with the snapshot it was remembered with. One of a release that wrote none: its columns are believed, all else
  is asked again.
-#}
{% macro remembered_loads(loaded, stages={}) %}
  {%- set found = {"inputs": {}, "columns": none, "keys": none, "ghosts": false, "hash": none, "days": none, "states": {}, "base": none, "revised": {}, "revised_now": {}} -%}
  {%- set prefix = cdc_vault.load_property("") -%}
  {%- set values, ancestors, tables = {}, [], {} -%}
  {%- set given = cdc_vault.given_metadata(loaded, stages) -%}
  {%- for kind, key, value in (run_query(cdc_vault.load_metadata(loaded, stages)).rows if given is none else given) -%}
    {%- if kind == "days" -%}{%- do found.update(days=value.split("|")) -%}
    {%- elif kind == "property" -%}{%- do values.update({key.replace(prefix, "", 1): value}) -%}
    {%- elif kind == "ancestor" -%}{%- do ancestors.append(value) -%}
    {%- elif kind == "base" -%}{%- do found.update(base=value) -%}
    {%- elif kind == "revised" -%}{%- do found.revised_now.update({key: value}) -%}
    {%- else -%}{%- do tables.update({key: value}) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- for name, read in stages.items() if read.whole -%}
    {%- set snapshots = [] -%}
    {%- for relation in read.tables -%}{%- do snapshots.append(tables.get(relation | string, "")) -%}{%- endfor -%}
    {%- do found.states.update({name: snapshots | join(",") if "" not in snapshots else ""}) -%}
  {%- endfor -%}
  {%- for key, value in values.items() -%}
    {%- set value, _, snapshot = value.rpartition("|") -%}
    {%- set counts = snapshot in ancestors -%}
    {%- if key == "columns" -%}{%- do found.update(columns=value if counts else (snapshot if not value else "of another state")) -%}
    {%- elif key == "keys" -%}{%- do found.update({"keys": fromjson(value) if counts else none}) -%}
    {%- elif key == "hash" -%}{%- do found.update(hash=value if counts else none) -%}
    {%- elif key == "revised" -%}{%- do found.update(revised=fromjson(value) if counts else {}) -%}
    {%- elif key == "ghost" -%}{%- do found.update(ghosts=counts and value == "2") -%}
    {%- elif counts -%}{%- do found.inputs.update({key: value.split("|")}) -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  Rows of kind, key and value: the days of a backfill; of the target its properties, those snapshots they name that it
  descends from, and its own; and of the tables that the stages read, the snapshots, and when they were revised.
-#}
{% macro load_metadata(loaded, stages) -%}
  select 'days' as kind, '' as key, days as value from ({{ cdc_vault.days_of_run() }})
  {%- if loaded %}
  {%- set properties -%}
    from {{ cdc_vault.system_table(this, "properties") }} where key like '{{ cdc_vault.load_property("") }}%'
  {%- endset %}
  union all
  select 'property', key, value {{ properties }}
  union all
  select distinct 'ancestor', '', cast(snapshot_id as varchar)
  from {{ cdc_vault.system_table(this, "history") }}
  where is_current_ancestor and cast(snapshot_id as varchar) in (select regexp_extract(value, '[^|]*$') {{ properties }})
  union all
  select 'base', '', {{ cdc_vault.current_snapshot(this) }}
  {%- endif %}
  {%- for relation in stages.values() | sum(attribute="tables", start=[]) | unique %}
  union all
  select 'table', '{{ relation }}', {{ cdc_vault.current_snapshot(relation) }}
  union all
  select 'revised', '{{ relation }}', value from {{ cdc_vault.system_table(relation, "properties") }} where key = '{{ cdc_vault.revised_property() }}'
  {%- endfor %}
{%- endmacro %}

{#-
  The same rows from `LAKEHOUSE_TABLE_STATES` (JSON: by table its snapshot, its properties of loads, its ancestors, and when it was `revised`), where
  who has looked already gives them for all of these tables; else none. It is not given to a backfill.
-#}
{% macro given_metadata(loaded, stages) %}
  {%- set given, rows = fromjson(env_var("LAKEHOUSE_TABLE_STATES", "{}")), [] -%}
  {%- set tables = stages.values() | sum(attribute="tables", start=[]) | unique | list -%}
  {%- for relation in tables + ([this] if loaded else []) if relation.schema ~ "." ~ relation.identifier not in given -%}
    {{ return(none) }}
  {%- endfor -%}
  {%- if loaded -%}
    {%- set state = given[this.schema ~ "." ~ this.identifier] -%}
    {%- for key, value in state.loads.items() -%}{%- do rows.append(("property", key, value)) -%}{%- endfor -%}
    {%- for snapshot in state.ancestors -%}{%- do rows.append(("ancestor", "", snapshot)) -%}{%- endfor -%}
    {%- if state.snapshot -%}{%- do rows.append(("base", "", state.snapshot)) -%}{%- endif -%}
  {%- endif -%}
  {%- for relation in tables -%}
    {%- set state = given[relation.schema ~ "." ~ relation.identifier] -%}
    {%- if state.snapshot -%}{%- do rows.append(("table", relation | string, state.snapshot)) -%}{%- endif -%}
    {%- if state.revised -%}{%- do rows.append(("revised", relation | string, state.revised)) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(rows if given else none) }}
{% endmacro %}

{% macro current_snapshot(relation) -%}
  cast(snapshot_id as varchar) from {{ cdc_vault.system_table(relation, "refs") }} where name = 'main'
{%- endmacro %}

{#-
  The target's snapshot after a load, if it still descends from the one that the load was planned on and from what the load
  wrote; else none: somebody has put it back meanwhile, and what was planned is not to be remembered.
-#}
{% macro loaded_snapshot(relation, base, query_id) %}
  {%- set ancestors = "select snapshot_id from " ~ cdc_vault.system_table(relation, "history") ~ " where is_current_ancestor" -%}
  {%- set found -%}
    select {{ cdc_vault.current_snapshot(relation) }}
    {%- if base %}
    and {{ base }} in ({{ ancestors }})
    {%- endif %}
    {%- if query_id %}
    and not exists (
      select 1 from {{ cdc_vault.system_table(relation, "snapshots") }}
      where element_at(summary, 'trino_query_id') = '{{ query_id }}' and snapshot_id not in ({{ ancestors }})
    )
    {%- endif %}
  {%- endset -%}
  {%- for row in run_query(found).rows -%}{{ return(row[0]) }}{%- endfor -%}
  {{ return(none) }}
{% endmacro %}

{#-
  The rows of `stage_facts`. `LAKEHOUSE_STAGE_FACTS` (JSON: by stage and watermark, all that is remembered of it) gives them to
  who has looked already; they are those of stages in which the moment and the position have their usual names. Within a run of
  dbt, the models of one stage ask once for each watermark and state (`states`) of the stage's tables: `graph` is the one
  thing that all of them see.
-#}
{% macro facts_of_stages(inputs, remembered, states, src_ldts, src_seq) %}
  {%- set given = fromjson(env_var("LAKEHOUSE_STAGE_FACTS", "{}")) if (src_ldts, src_seq) == ("load_date", "source_seq") else {} -%}
  {%- set known, asked, rows, unknown = graph.setdefault("lakehouse_facts", {}), {}, [], [] -%}
  {%- for name in inputs -%}
    {%- set stage, mark = name.split(".")[0], remembered.get(name, [""]) -%}
    {%- do asked.update({name: [stage, src_ldts, src_seq, mark[0], states.get(name, "")] | join("|")}) -%}
    {%- set facts = given.get(stage ~ "|" ~ mark | join("|")) or known.get(asked[name]) -%}
    {%- if facts -%}{%- do rows.append([name] + facts) -%}{%- else -%}{%- do unknown.append(name) -%}{%- endif -%}
  {%- endfor -%}
  {%- for row in (run_query(cdc_vault.stage_facts(unknown, remembered, src_ldts, src_seq)).rows if unknown else []) -%}
    {%- do rows.append(row | list) -%}
    {%- if states.get(row[0]) -%}{%- do known.update({asked[row[0]]: (row | list)[1:]}) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(rows) }}
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
