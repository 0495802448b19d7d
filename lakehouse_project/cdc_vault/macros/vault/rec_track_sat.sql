{#-
  Record tracking satellite: in which loads a source mentioned a key, whether or not anything about it changed. One row
  per key, source and moment of publication; several changes in one load are one mention.
-#}
{% macro rec_track_sat(src_pk, source_model, src_ldts="load_date", src_source="record_source", src_seq="source_seq") -%}
  {{- config(properties={"partitioning": "array['month(" ~ src_ldts ~ ")']"}) -}}
  {%- set inputs, keys = cdc_vault.inputs_of(source_model, src_pk, []), {} -%}
  {%- for input in inputs -%}{%- do keys.update({input.name: [input.src_pk]}) -%}{%- endfor -%}
  {%- set stages = inputs | map(attribute="model") | unique | list -%}
  {%- for name in stages -%}{%- do ref(name) -%}{%- endfor -%}
  {%- if not execute -%}
    select 1 as placeholder
  {%- else -%}
  {%- set plan = cdc_vault.load_plan(inputs | map(attribute="name") | list, src_ldts, src_seq, src_source=src_source, hashed=src_pk, keys=keys) -%}
{{ cdc_vault.plan_header(plan, [src_pk, src_ldts, src_source]) }}
  with mentions as (
    {%- for input in cdc_vault.with_new_data(plan, inputs) %}
    {{ "union" if not loop.first }}
    select distinct {{ input.src_pk }} as {{ src_pk }}, {{ src_ldts }}, {{ src_source }}
    from {{ cdc_vault.new_rows_of(ref(input.model), plan, input.name) }}
    where {{ cdc_vault.rows_to_load(plan, input.name) }} and {{ cdc_vault.is_known(input.src_pk) }}
    {%- endfor %}
  ),
  stored as (
    select {{ src_pk }}, {{ src_ldts }}, {{ src_source }}
    from {{ cdc_vault.stored_rows(ref(stages[0]), plan) }}
    where {{ src_ldts }} >= (select min({{ src_ldts }}) from mentions) and {{ cdc_vault.among([src_pk], "mentions") }}
  )
  select mentions.{{ src_pk }}, mentions.{{ src_ldts }}, mentions.{{ src_source }}
  from mentions
  left join stored
    on stored.{{ src_pk }} = mentions.{{ src_pk }}
    and stored.{{ src_ldts }} = mentions.{{ src_ldts }}
    and stored.{{ src_source }} = mentions.{{ src_source }}
  where stored.{{ src_pk }} is null
  {{- cdc_vault.and_carried(plan, [src_pk, src_ldts, src_source]) }}
  {%- endif -%}
{%- endmacro %}
