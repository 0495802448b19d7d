{#-
  What the keys of a vault table are made of, and whether that is what it was when its rows were written: a hash of another
  rule, code or column meets none of the others, so such a table is built anew (`load_plan`).
-#}

{#-
  By input, a signature of what its stage hashes to keys; by stage and column, how keys read the columns of that. Each counts
  where it was remembered: an earlier release did not know of columns.
-#}
{% macro key_signatures(keys) %}
  {%- set found = {} -%}
  {%- for input, columns in keys.items() -%}
    {%- set stage, made_of, named = input.split(".")[0], [], [] -%}
    {%- set said = cdc_vault.said_by_stage(stage) -%}
    {%- set hashed = said.hashed_keys or {} -%}
    {%- for column in columns if column in hashed -%}
      {%- set parts = [] -%}
      {%- for part in (hashed[column].get("keys", []) if hashed[column] is mapping else []) -%}{%- do parts.append(hashed.get(part)) -%}{%- endfor -%}
      {%- do made_of.append([hashed[column], parts]) -%}
      {%- for spec in [hashed[column]] + parts -%}{%- do named.extend(cdc_vault.parts_of_key(spec)) -%}{%- endfor -%}
    {%- endfor -%}
    {%- do found.update({input: local_md5(tojson(made_of, sort_keys=true))}) -%}
    {%- if named and said.source_model -%}{%- do found.update(cdc_vault.read_as(stage, named, said.source_model, said.derived_columns)) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- The columns that a key's specification names, as in `stage`. -#}
{% macro columns_of_key(spec) %}
  {{ return(cdc_vault.parts_of_key(spec) | map(attribute="column") | list) }}
{% endmacro %}

{#- The same, each with the `type` of the key that it names, "" where that is its own. -#}
{% macro parts_of_key(spec) %}
  {%- set found = [] -%}
  {%- for part in (spec.get("columns", []) if spec is mapping else spec or []) -%}
    {%- for entry in ([part] if part is string or part is mapping else part) -%}
      {%- set entry = entry if entry is mapping else {"column": entry, "type": ""} -%}
      {%- if not entry.column.startswith("!") -%}{%- do found.append(entry) -%}{%- endif -%}
    {%- endfor -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  How keys read these columns of a stage: the rule of their spelling, and what they are derived by. A type of which the lake has
  no text is left out: parsed is not what it was where it becomes another one. Types are looked up here, because dbt does not have
  the declarations yet when a stage says its `meta`.
-#}
{% macro read_as(stage, parts, source_model, derived_columns) %}
  {%- set columns, found = cdc_vault.stage_columns(source_model, derived_columns), {} -%}
  {%- for part in parts if part.column in columns -%}
    {%- set name = part.column -%}
    {%- set derived = " " ~ local_md5(derived_columns[name]) if name in derived_columns else "" -%}
    {%- if derived or columns[name].type in ("varchar", "real", "double") -%}
      {%- do found.update({stage ~ " " ~ name: cdc_vault.spelling_of(columns[name]) ~ derived}) -%}
    {%- endif -%}
    {%- if part.type and cdc_vault.lake_type(part.type) == "real" -%}{%- do found.update({stage ~ " " ~ name ~ " as real": "double"}) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  The floating-point columns that these stages hash to the hashdiffs among `columns`. Their hash is of its own (`canonical_text`), so
  it is remembered that they are such, and a `real` that becomes a double has the hash that it had.
-#}
{% macro floats_hashed(inputs, columns) %}
  {%- set found = [] -%}
  {%- for name in inputs if columns -%}
    {%- set said = cdc_vault.said_by_stage(name.split(".")[0]) -%}
    {%- for hashdiff, spec in (said.hashdiffs or {}).items() if hashdiff in columns -%}
      {%- set types = cdc_vault.stage_columns(said.source_model, said.derived_columns) -%}
      {%- for column in cdc_vault.columns_of_key(spec) if column in types and types[column].type in ("real", "double") -%}{%- do found.append(column) -%}{%- endfor -%}
    {%- endfor -%}
  {%- endfor -%}
  {{ return(found | unique | list) }}
{% endmacro %}

{#- Whether the target has these columns as doubles, which every release has hashed alike. -#}
{% macro has_doubles(columns) %}
  {%- set there = cdc_vault.types_of(this) if columns else {} -%}
  {%- for name in columns if there.get(name | lower) != "double" -%}{{ return(false) }}{%- endfor -%}
  {{ return(true) }}
{% endmacro %}

{#- What a stage hashes to keys, by column. -#}
{% macro keys_of_stage(name) %}
  {{ return(cdc_vault.said_by_stage(name).hashed_keys or {}) }}
{% endmacro %}

{#- What a stage says of itself, as `meta`. -#}
{% macro said_by_stage(name) %}
  {%- for id in model.depends_on.nodes if id.split(".")[-1] == name and id in graph.nodes -%}
    {{ return(graph.nodes[id].config.meta or {}) }}
  {%- endfor -%}
  {{ return({}) }}
{% endmacro %}

{#-
  Whether the target's keys are made of something else than its stages make them of now. An input that is new says nothing.
  Where nothing is remembered of them, or of a floating-point column among them, which may have been hashed by fewer digits, the
  keys of stored events are compared with those that their stages have. A table without positions (mentions) is built anew then.
-#}
{% macro has_other_keys(remembered, signatures, keys, hashed, src_seq, key_rows) %}
  {%- if remembered is not none -%}
    {%- for input, signature in signatures.items() if remembered.get(input, signature) != signature -%}{{ return(true) }}{%- endfor -%}
    {%- set unsure = [] -%}
    {%- for input, signature in signatures.items() if input not in remembered and signature.startswith("double") -%}{%- do unsure.append(input) -%}{%- endfor -%}
    {%- if not unsure -%}{{ return(false) }}{%- endif -%}
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

{#-
  Refuses to load from a stage whose view in Trino has other hashes than the project says, as one from before a declaration was
  changed: a table would be made of it, and remembered as made by the project. A view that dbt-trino made does not say.
-#}
{% macro check_stages(inputs, seen={}) %}
  {%- set names = [] -%}
  {%- for input in inputs -%}{%- do names.append(input.split(".")[0]) -%}{%- endfor -%}
  {%- for id in model.depends_on.nodes if id.split(".")[-1] in names and id in graph.nodes and graph.nodes[id].config.materialized == "view" -%}
    {%- set name, marker = id.split(".")[-1], cdc_vault.stage_marker(graph.nodes[id].config.meta) -%}
    {%- set there = cdc_vault.view_seen(name, seen) if marker else "" -%}
    {%- if "definition " in there and marker not in there -%}
      {%- set awaited = cdc_vault.columns_awaited(graph.nodes[id]) -%}
      {%- if awaited -%}
        {{ exceptions.raise_compiler_error(
          this ~ ": it has to be made of the view " ~ ref(name) ~ ", which is of before a change of the project and cannot be made yet: "
          ~ graph.nodes[id].config.meta.source_model ~ " lacks " ~ awaited | join(", ") ~ " as declared. Run the load job of that table, then load this again"
        ) }}
      {%- endif -%}
      {{ exceptions.raise_compiler_error(
        this ~ ": it has to be made of the view " ~ ref(name) ~ ", which is of before a change of the project. Make that first, by the load job or"
        ~ " `dbt run --select " ~ name ~ "`, then load this again"
      ) }}
    {%- endif -%}
  {%- endfor -%}
{% endmacro %}

{#-
  The declared columns that the parsed table of a stage lacks, or has of another type until its load widens them; none of
  another view.
-#}
{% macro columns_awaited(stage) %}
  {%- set said, found = stage.config.meta, [] -%}
  {%- if not said or not said.source_model or said.hashed_keys is not defined -%}{{ return(found) }}{%- endif -%}
  {%- for id in stage.depends_on.nodes if id in graph.nodes and id.split(".")[-1] == said.source_model -%}
    {%- set parsed = api.Relation.create(graph.nodes[id].database, graph.nodes[id].schema, graph.nodes[id].alias) -%}
    {%- set there = {} -%}
    {%- for column in (cdc_vault.table_columns(parsed, since=true) if cdc_vault.relation_exists(parsed) else []) -%}
      {%- do there.update({column.name | lower: column.type | lower | replace(", ", ",")}) -%}
    {%- endfor -%}
    {%- for column in cdc_vault.stage_columns(said.source_model, {}).values() if there and there.get(column.name | lower) != column.type -%}
      {%- do found.append(column.name) -%}
    {%- endfor -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- What the view of a stage has in its comment, by what the stage says of itself: a checksum of its hashes; "" of another view. -#}
{% macro stage_marker(said) %}
  {%- if not said or not said.source_model or said.hashed_keys is not defined -%}{{ return("") }}{%- endif -%}
  {%- set columns, made = cdc_vault.stage_columns(said.source_model, said.derived_columns), [said.source_model] -%}
  {%- for name, expression in said.derived_columns.items() -%}{%- do made.append(name ~ " " ~ cdc_vault.derived_expression(expression, columns)) -%}{%- endfor -%}
  {%- for name, spec in dict(said.hashed_keys, **(said.hashdiffs or {})).items() -%}
    {%- do made.append(name ~ " " ~ cdc_vault.hashed_column(name, spec, columns, said.hashed_keys)) -%}
  {%- endfor -%}
  {{ return("[hashes " ~ local_md5(made | sort(case_sensitive=true) | join("\n")) ~ "] ") }}
{% endmacro %}
