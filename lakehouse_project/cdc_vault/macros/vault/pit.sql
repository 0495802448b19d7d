{#-
  Point-in-time table: for each key of a hub and each moment of a control snapshot, which row of each satellite was valid.
  A satellite row is named by `<satellite>_hk` and `<satellite>_seq` (its key and source_seq: load dates are shared by all rows
  of a load, and the order of commits is what counts). Where a satellite knew nothing yet, both name its ghost record, so that
  a query joins by equality. A key is there while any of the satellites says that it exists. A multi-active satellite has
  several rows of a key at a moment and is refused. From `source_seq` until `source_seq_to`, in the source's order, these
  and no other rows held: `valid_after` asks it as it asks a `_v1` view. Both are NULL where the satellites are of
  several sources, of which each counts its own positions.

  Built whole, because a late event changes moments that are past: after it the answer is the one the source gave then.
-#}
{% macro pit(source_model, src_pk, satellites, snapshots="control_snap", src_snapshot="sdts") -%}
  {%- if not cdc_vault.has_ghosts("sat") -%}
    {{ exceptions.raise_compiler_error(model.name ~ ": a PIT points at ghost records: put sat into vars.vault_ghost_records") }}
  {%- endif -%}
  {%- do cdc_vault.check_one_row(satellites, "a PIT names one") -%}
  {#- What a satellite does not know yet ends where it first knows anything; `~` is after every position. -#}
  {%- set begins, ends = [], [] -%}
  {%- for satellite in satellites -%}
    {%- do begins.append("coalesce(" ~ satellite ~ ".source_seq, " ~ cdc_vault.ghost_position() ~ ")") -%}
    {%- set first = "case when " ~ satellite ~ "." ~ src_pk ~ " is null then " ~ satellite ~ "_first.source_seq end" -%}
    {%- do ends.append("coalesce(" ~ satellite ~ ".source_seq_to, " ~ first ~ ", '~')") -%}
  {%- endfor -%}
  select
    hub.{{ src_pk }},
    snapshots.{{ src_snapshot }},
    {%- for satellite in satellites %}
    coalesce({{ satellite }}.{{ src_pk }}, {{ cdc_vault.zero_key() }}) as {{ satellite }}_hk,
    coalesce({{ satellite }}.source_seq, {{ cdc_vault.ghost_position() }}) as {{ satellite }}_seq,
    {%- endfor %}
    {%- if cdc_vault.sources_below(satellites) | length > 1 %}
    cast(null as varchar) as source_seq,
    cast(null as varchar) as source_seq_to
    {%- else %}
    greatest({{ begins | join(", ") }}) as source_seq,
    nullif(least({{ ends | join(", ") }}), '~') as source_seq_to
    {%- endif %}
  from {{ ref(source_model) }} as hub
  cross join {{ cdc_vault.active_snapshots(snapshots, src_snapshot) }} as snapshots
  {%- for satellite in satellites %}
  left join {{ ref(satellite ~ "_v1") }} as {{ satellite }}
    on {{ satellite }}.{{ src_pk }} = hub.{{ src_pk }} and {{ cdc_vault.valid_at(satellite, "snapshots." ~ src_snapshot) }}
  left join (
    select {{ src_pk }}, min(source_seq) as source_seq from {{ ref(satellite) }} group by {{ src_pk }}
  ) as {{ satellite }}_first
    on {{ satellite }}_first.{{ src_pk }} = hub.{{ src_pk }}
  {%- endfor %}
  where {% for satellite in satellites %}{{ "or " if not loop.first }}not {{ satellite }}.is_deleted {% endfor %}
{%- endmacro %}

{#- Refuses a satellite with several rows of a key at a time, for a reader that has one row of each: `says` so. -#}
{% macro check_one_row(satellites, says) %}
  {%- for satellite in satellites if cdc_vault.is_multi_active(satellite) -%}
    {{ exceptions.raise_compiler_error(model.name ~ ": " ~ satellite ~ " has several rows of a key at a time, and " ~ says ~ ": leave it out and join its _v1 view by valid_from and valid_to") }}
  {%- endfor -%}
{% endmacro %}

{#- Whether a satellite's model is made by `ma_sat`. -#}
{% macro is_multi_active(satellite) %}
  {%- for node in graph.get("nodes", {}).values() if node.name == satellite and "macro.cdc_vault.ma_sat" in node.depends_on.macros -%}
    {{ return(true) }}
  {%- endfor -%}
  {{ return(false) }}
{% endmacro %}

{#-
  Bridge: for each key of a hub and each moment, the keys it was linked with, along a walk of steps
  {link: …, effectivity: …, src_pk: key of the link, from: key already reached, to: [keys the link leads to]}. A key is there
  while any link of the walk is active; a step that leads nowhere, or to a reference that is NULL, and those after it, are the zero
  key.
-#}
{% macro bridge(source_model, src_pk, walk, snapshots="control_snap", src_snapshot="sdts") -%}
  {%- set reached = {src_pk: "hub"} -%}
  {%- for step in walk -%}
    {%- if step["from"] not in reached -%}
      {{ exceptions.raise_compiler_error(model.name ~ ": the step by " ~ step.link ~ " starts from " ~ step["from"] ~ ", which no step before it reaches") }}
    {%- endif -%}
    {%- for key in step.to -%}{%- do reached.update({key: step.link}) -%}{%- endfor -%}
  {%- endfor -%}
  {%- set began = {src_pk: "hub"} -%}
  select
    hub.{{ src_pk }},
    snapshots.{{ src_snapshot }}
    {%- for step in walk %}
    {%- for key in [step.src_pk] + step.to %},
    coalesce({{ step.link }}.{{ key }}, {{ cdc_vault.zero_key() }}) as {{ key }}
    {%- endfor %}
    {%- endfor %}
  from {{ ref(source_model) }} as hub
  cross join {{ cdc_vault.active_snapshots(snapshots, src_snapshot) }} as snapshots
  {%- for step in walk %}
  left join (
    select link.*, effectivity.valid_from, effectivity.valid_to
    from {{ ref(step.link) }} as link
    join {{ ref(step.effectivity) }} as effectivity on effectivity.{{ step.src_pk }} = link.{{ step.src_pk }} and effectivity.is_active
  ) as {{ step.link }}
    on {{ step.link }}.{{ step["from"] }} = {{ cdc_vault.reached_by(step["from"], began) }}
    {%- if step["from"] != src_pk %}
    and {{ cdc_vault.is_known(cdc_vault.reached_by(step["from"], began)) }}
    {%- endif %}
    and {{ cdc_vault.valid_at(step.link, "snapshots." ~ src_snapshot) }}
  {%- for key in step.to -%}{%- do began.update({key: step.link}) -%}{%- endfor -%}
  {%- endfor %}
  where {% for step in walk %}{{ "or " if not loop.first }}{{ step.link }}.{{ step.src_pk }} is not null {% endfor %}
{%- endmacro %}

{% macro reached_by(key, began) -%}
  {{ began[key] }}.{{ key }}
{%- endmacro %}

{% macro active_snapshots(snapshots, src_snapshot) -%}
  (select {{ src_snapshot }} from {{ ref(snapshots) }} where is_active and {{ src_snapshot }} <= {{ cdc_vault.last_snapshot() }})
{%- endmacro %}

{#- Whether a row of a `_v1` view held at a moment. -#}
{% macro valid_at(view, moment) -%}
  {{ view }}.valid_from <= {{ moment }} and ({{ view }}.valid_to > {{ moment }} or {{ view }}.valid_to is null)
{%- endmacro %}
