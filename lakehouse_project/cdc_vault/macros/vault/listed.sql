{#-
  Refuses to load a table whose columns would not hold what the model makes. Parsed has its types from the declaration,
  the vault from YAML that `lakehouse scaffold` writes: where that was not run, each value was cast to a former type.

  `made` are the names of all columns that the model makes, `taken` by stage those that have its values. Where the YAML
  does not count (`described_columns`), the table keeps the columns of its first query; `adds`: this load adds rows to them.
-#}
{% macro check_listed(made, taken, adds) %}
  {%- set listed, names = {}, made | map("lower") | list -%}
  {%- for column in cdc_vault.described_columns(none) -%}{%- do listed.update({column.name | lower: column.type}) -%}{%- endfor -%}
  {%- set unlisted, unmade = names | reject("in", listed) | list if listed else [], listed | reject("in", names) | list -%}
  {%- for name in unlisted + unmade -%}
    {{ exceptions.raise_compiler_error(
      this ~ ": column " ~ name ~ (" is not in the model's YAML" if name in unlisted else " is in the model's YAML and not made by the model")
      ~ ": list all columns there, or none with a data_type"
    ) }}
  {%- endfor -%}
  {%- set types = listed or (cdc_vault.types_of(this) if adds and taken else {}) -%}
  {%- for stage, columns in taken.items() if types -%}
    {%- set there = cdc_vault.types_in_stage(stage) -%}
    {%- for name in columns if name in there and name | lower in types and not cdc_vault.holds_values(there[name], types[name | lower]) -%}
      {%- set type = types[name | lower] -%}
      {%- set widens = listed and cdc_vault.can_become(type, there[name]) -%}
      {{ exceptions.raise_compiler_error(
        this ~ ": column " ~ name ~ " is " ~ there[name] ~ " in " ~ stage ~ ", and as " ~ type ~ " its values would change: "
        ~ ("run `lakehouse scaffold`, then " if listed else "") ~ ("load it again" if widens else cdc_vault.how_to_build_anew())
      ) }}
    {%- endfor -%}
  {%- endfor -%}
{% endmacro %}

{#-
  By name, the type of each column that a stage has from its parsed table, by the declaration; none of what is derived by
  SQL, or of a stage with SQL of its own. The models of one stage look once in a run, as for its facts (`facts_of_stages`).
-#}
{% macro types_in_stage(name) %}
  {%- set known, types = graph.setdefault("lakehouse_types", {}), {} -%}
  {%- if name in known -%}{{ return(known[name]) }}{%- endif -%}
  {%- set said = cdc_vault.said_by_stage(name) -%}
  {%- for column in (cdc_vault.stage_columns(said.source_model, said.derived_columns).values() if said.source_model else []) if column.postgres_type -%}
    {%- do types.update({column.name: column.type}) -%}
  {%- endfor -%}
  {%- do known.update({name: types}) -%}
  {{ return(types) }}
{% endmacro %}
