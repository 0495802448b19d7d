{#-
  Rows that are handed to a load, which then reads no table for them. Who runs dbt every few seconds has the few new rows
  already, and for Trino each table of a statement is a stage to plan, start and end, however few rows it gives. The SQL
  stays what it is; a common table expression of whoever sends it stands in for the table:

  - `_lh_raw_<parsed model>`: the rows of raw that parsed lacks;
  - `_lh_parsed_<parsed model>`: the rows that parsed gets, for the stages of it;
  - `_lh_new_<stage>`: the rows of a stage that a load has not seen, where it has seen all others and none is late;
  - `_lh_stored_<model>`: of a table itself, the rows of the keys among these. The header says which columns of which keys
    (`stored`).

  `LAKEHOUSE_HANDED` (JSON) lists those that are there, that of a stage once for each watermark: `_lh_new_<stage>|<watermark>`.
  Without it nothing is handed over, and a load reads its tables.
-#}
{% macro is_handed(name) %}
  {{ return(name in fromjson(env_var("LAKEHOUSE_HANDED", "[]"))) }}
{% endmacro %}

{#- What stands in for a table, if it is handed over; else the table. -#}
{% macro handed_or(name, relation) -%}
  {{ cdc_vault.quoted(name) if cdc_vault.is_handed(name) else relation }}
{%- endmacro %}

{#- Whether the rows of an input's stage after a watermark are handed over. -#}
{% macro is_stage_handed(input, mark) %}
  {{ return(mark is not none and cdc_vault.is_handed("_lh_new_" ~ input.split(".")[0] ~ "|" ~ mark | join("|"))) }}
{% endmacro %}

{#- Where the rows to load of an input are read. -#}
{% macro new_rows_of(stage, plan, input) -%}
  {{ cdc_vault.quoted("_lh_new_" ~ input.split(".")[0]) if plan and plan.inputs[input].handed else stage }}
{%- endmacro %}

{#-
  What the header says of the target's own rows: the `columns` that the load compares, of rows whose `key` is among those of
  the rows handed over (`keys`: by stage, the columns that hold them there). None where a row to load is not handed over.
-#}
{% macro handed_stored(plan, inputs, key, columns, keys) %}
  {%- for name in inputs if not plan or not plan.inputs[name].handed -%}{{ return(none) }}{%- endfor -%}
  {{ return({"key": key, "columns": columns | unique | list, "keys": keys} if inputs and cdc_vault.is_loaded() and not plan.anew else none) }}
{% endmacro %}

{#- The target's rows of the keys among those to load, which `condition` tells. -#}
{% macro stored_of_keys(stored, stage, plan, condition) -%}
  {%- if stored -%}
    {{ cdc_vault.quoted("_lh_stored_" ~ model.name) }}
  {%- else -%}
    {{ cdc_vault.stored_rows(stage, plan) }}
    where {{ condition }}
  {%- endif -%}
{%- endmacro %}
