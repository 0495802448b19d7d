{#-
  Hub: every business key once, from every table that mentions it, with the moment it was first seen. A delete names its
  key too, so a hub holds keys that are gone. A stage that spells the key's columns differently is given as
  {model: …, src_pk: …, src_nk: …}; the hub has the names of its own parameters. `src_types` among them are the hub's
  types, where the stage has text and the hub has not, or the other way round. Where stages of several systems hash their
  keys with collision codes, each is given with its `code`, and the hub has it in `src_code`: equal keys stay apart. Its own
  keys are in its `meta`, for the test `keys_are_given` of a stage.
-#}
{% macro hub(src_pk, src_nk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq", src_code=none) -%}
  {{- config(meta={"hash_key": src_pk, "business_key": cdc_vault.as_list(src_nk)}) -}}
  {{ cdc_vault.first_sight(src_pk, src_nk, source_model, src_ldts, src_source, src_seq, "hub", of_deletes=true, code=src_code) }}
{%- endmacro %}

{#-
  Link: every combination of keys once. A delete knows only its own key, so links come from live rows, unless the
  combination is the key of its table (`is_key`). A NULL reference is the zero key: the combination is kept, and says so.
-#}
{% macro link(src_pk, src_fk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq", is_key=false) -%}
  {{ cdc_vault.first_sight(src_pk, src_fk, source_model, src_ldts, src_source, src_seq, "link", of_deletes=is_key) }}
{%- endmacro %}

{#-
  Non-historized link: an event that happens once and never changes (a payment, a click), with what it says in the same
  row. `nh_link_is_sound` tells when the source breaks that promise; then it is a hub or a link, with a satellite.
-#}
{% macro nh_link(src_pk, src_fk, src_payload, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{ cdc_vault.first_sight(src_pk, src_fk, source_model, src_ldts, src_source, src_seq, "link", payload=src_payload) }}
{%- endmacro %}

{#-
  What they have in common: the first sight of each key in the batch, unless it is there already. One
  that is declared otherwise now is built anew, or what is new in it would be NULL for the past. The table is
  narrowed to the batch's keys before the two are compared: measured on 5 million rows, 10,000 new keys take 0.6 s of
  CPU and 1 MB so, a third more CPU by an outer join, and many times the memory by NOT EXISTS over the table. A few keys
  narrow the scan of an outer join by themselves, and reading the batch once halves the plan.

  A row has the position of the mention that was loaded first. What mentions a key is in its `meta`, for queries of the
  past: another stage may have mentioned the key before the moment that they ask for. One with a payload does not say it: its
  row would tell of that moment what was said after it.
-#}
{% macro first_sight(src_pk, columns, source_model, src_ldts, src_source, src_seq, kind, of_deletes=false, code=none, payload=[]) -%}
  {%- set columns = cdc_vault.as_list(columns) + payload -%}
  {%- set names = [src_pk] + columns + ([code] if code else []) + [src_ldts, "applied_date", src_seq, src_source] -%}
  {%- set of_stage, columns = columns, cdc_vault.spelled(columns) -%}
  {%- set inputs, keys = cdc_vault.inputs_of(source_model, src_pk, columns, code), {} -%}
  {%- for input in inputs -%}{%- do keys.update({input.name: [input.src_pk] + columns}) -%}{%- endfor -%}
  {%- set mentions = [] -%}
  {%- for input in inputs -%}{%- do mentions.append({"stage": input.model, "key": input.src_pk}) -%}{%- endfor -%}
  {%- if kind != "sat" and not payload -%}{{- config(meta={"first_sight": {"key": src_pk, "mentions": mentions, "of_deletes": of_deletes}}) -}}{%- endif -%}
  {%- set taken = {inputs[0].model: of_stage} if inputs[0].columns[:columns | length] == columns else {} -%}
  {%- set columns = columns + ([code] if code else []) -%}
  {%- set stages = inputs | map(attribute="model") | unique | list -%}
  {%- for name in stages -%}{%- do ref(name) -%}{%- endfor -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set plan = cdc_vault.load_plan(inputs | map(attribute="name") | list, src_ldts, src_seq, src_source=src_source, ghosts=cdc_vault.has_ghosts(kind), columns=names, hashed=src_pk, keys=keys,
    keys_only=kind != "sat" and not payload) -%}
  {%- set incoming = cdc_vault.with_new_data(plan, inputs) -%}
  {%- set incoming_names, key_columns = incoming | map(attribute="name") | list, {} -%}
  {%- for input in incoming -%}{%- do key_columns.setdefault(input.model, []).append(input.src_pk) -%}{%- endfor -%}
  {%- set stored = cdc_vault.handed_stored(plan, incoming_names, src_pk, [src_pk], key_columns) -%}
  {%- set of_keys = "true" if cdc_vault.is_few(plan, incoming) else src_pk ~ " in (select " ~ src_pk ~ " from batch)" -%}
{{ cdc_vault.plan_header(plan, names, taken, stored) }}
  with incoming as (
    {%- for input in incoming %}
    {{ "union all" if not loop.first }}
    select {{ input.src_pk }} as {{ src_pk }}, {% for column in columns %}{{ input.columns[loop.index0] }} as {{ column }}, {% endfor -%}
      {{ src_ldts }}, applied_date, {{ src_seq }}, {{ src_source }}
    from {{ cdc_vault.new_rows_of(ref(input.model), plan, input.name) }}
    where {{ cdc_vault.rows_to_load(plan, input.name) }} and {{ cdc_vault.is_known(input.src_pk) if of_deletes else "not is_deleted" }}
      {%- if kind == "sat" %} and {{ cdc_vault.is_known(input.src_pk) }}{% endif %}
    {%- endfor %}
  ),
  batch as (
    select *
    from (
      select
        *,
        row_number() over (
          partition by {{ src_pk }} order by {{ src_ldts }}, applied_date, {{ src_seq }}, {{ src_source }}
        ) as _lh_nth
      from incoming
    )
    where _lh_nth = 1
  ),
  stored as (
    select {{ src_pk }}
    from {{ cdc_vault.stored_of_keys(stored, ref(stages[0]), plan, of_keys) }}
  )
  select
    batch.{{ src_pk }},
    {%- for column in columns %}
    batch.{{ column }},
    {%- endfor %}
    batch.{{ src_ldts }},
    batch.applied_date,
    batch.{{ src_seq }},
    batch.{{ src_source }}
  from stored
  right join batch on batch.{{ src_pk }} = stored.{{ src_pk }}
  where stored.{{ src_pk }} is null
  {%- set keys = [src_pk] -%}
  {%- for column in columns if column.startswith("hk_") -%}{%- do keys.append(column) -%}{%- endfor %}
  {{- cdc_vault.other_rows(plan, [src_pk] + columns + [src_ldts, "applied_date", src_seq, src_source], keys, {}, src_ldts, src_source, src_seq) }}
  {%- endif -%}
{%- endmacro %}

{#-
  Each stage, with the names of the key's columns there. An input's own name is that of its stage and, where that spells the
  key differently, of the key: a stage may mention a hub several times, and a new mention has loaded nothing yet.
-#}
{% macro inputs_of(source_model, src_pk, columns, code=none) %}
  {%- set inputs = [] -%}
  {%- for input in ([source_model] if source_model is string or source_model is mapping else source_model) -%}
    {%- set input = {"model": input} if input is string else input -%}
    {%- set pk = input.get("src_pk", src_pk) -%}
    {%- set given = cdc_vault.spelled(input.src_nk) if input.src_nk else columns -%}
    {%- set cast = [] -%}
    {%- for type in input.src_types or [] -%}{%- do cast.append("cast(" ~ given[loop.index0] ~ " as " ~ type ~ ")") -%}{%- endfor -%}
    {%- set codes = [cdc_vault.sql_text(input.code or "")] if code else [] -%}
    {%- do inputs.append({
      "name": input.model if pk == src_pk else input.model ~ "." ~ pk,
      "model": input.model, "src_pk": pk, "columns": (cast or given) + codes,
    }) -%}
  {%- endfor -%}
  {{ return(inputs) }}
{% endmacro %}
