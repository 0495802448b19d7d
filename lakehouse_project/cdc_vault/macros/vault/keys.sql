{#-
  What the keys of a vault table are made of, and whether that is what it was when its rows were written: a hash of another
  rule, code or column meets none of the others, so such a table is built anew (`load_plan`).
-#}

{#- By input, a signature of what its stage hashes to keys. -#}
{% macro key_signatures(keys) %}
  {%- set found = {} -%}
  {%- for input, columns in keys.items() -%}
    {%- set hashed, made_of = cdc_vault.keys_of_stage(input.split(".")[0]), [] -%}
    {%- for column in columns if column in hashed -%}
      {%- set parts = [] -%}
      {%- for part in (hashed[column].get("keys", []) if hashed[column] is mapping else []) -%}{%- do parts.append(hashed.get(part)) -%}{%- endfor -%}
      {%- do made_of.append([hashed[column], parts]) -%}
    {%- endfor -%}
    {%- do found.update({input: local_md5(tojson(made_of, sort_keys=true))}) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- What a stage hashes to keys, by column: it says so of itself, as `meta`. -#}
{% macro keys_of_stage(name) %}
  {%- for id in model.depends_on.nodes if id.split(".")[-1] == name and id in graph.nodes -%}
    {{ return((graph.nodes[id].config.meta or {}).hashed_keys or {}) }}
  {%- endfor -%}
  {{ return({}) }}
{% endmacro %}

{#-
  Whether the target's keys are made of something else than its stages make them of now. An input that is new says nothing.
  Where nothing is remembered of them, the keys of stored events are compared with those that their stages have. A table without
  positions (mentions) is built anew then.
-#}
{% macro has_other_keys(remembered, signatures, keys, hashed, src_seq, key_rows) %}
  {%- if remembered is not none -%}
    {%- for input, signature in signatures.items() if remembered.get(input, signature) != signature -%}{{ return(true) }}{%- endfor -%}
    {{ return(false) }}
  {%- endif -%}
  {%- if not keys -%}{{ return(false) }}{%- endif -%}
  {%- set there, pks = cdc_vault.table_columns(this) | map(attribute="name") | list, {} -%}
  {%- if "record_source" not in there -%}{{ return(false) }}{%- endif -%}
  {%- if src_seq not in there -%}{{ return(true) }}{%- endif -%}
  {%- for input, columns in keys.items() -%}{%- do pks.setdefault(input.split(".")[0], []).append("said." ~ columns[0]) -%}{%- endfor -%}
  {%- for stage, own in pks.items() -%}
    {%- set found = cdc_vault.other_keys(stage, own, keys.get(stage, [""])[1:], there, hashed, src_seq, key_rows) -%}
    {%- if run_query(found).rows -%}{{ return(true) }}{%- endif -%}
  {%- endfor -%}
  {{ return(false) }}
{% endmacro %}

{#- A stored event whose keys are none of those that its stage has; its `hashed` one in `key_rows` alone. -#}
{% macro other_keys(stage, pks, columns, there, hashed, src_seq, key_rows) -%}
  select 1
  from {{ this }} as kept
  join {{ ref(stage) }} as said on said.{{ src_seq }} = kept.{{ src_seq }} and said.record_source = kept.record_source
  where {{ key_rows }} and kept.{{ hashed }} not in ({{ pks | join(", ") }})
  {%- for column in columns if column in there and column in cdc_vault.keys_of_stage(stage) %}
    or kept.{{ column }} <> said.{{ column }}
  {%- endfor %}
  limit 1
{%- endmacro %}
