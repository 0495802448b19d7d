{#-
  Which stored rows the stages say nothing of, as a condition; none where there are none. They are of a source that no stage
  has (it was removed), or from before the first row that a stage has of it (its tables were dropped, and begun again).

  A record source that a stage has is known in full. Another one is known by its source's name, which it begins with: the rest
  is that of a relation or topic, which may have been renamed. Of several stages nobody knows whether such rows are of a table
  that was renamed or of one that was removed. A table of `keys_only` keeps them: it has each key once in any case.
-#}
{% macro carried_rows(inputs, src_ldts, src_source, keys_only=false) %}
  {%- set stages, first, known, firsts, explained, renamed = [], [], [], {}, [], [] -%}
  {%- for name in inputs -%}{%- do stages.append(name.split(".")[0]) -%}{%- endfor -%}
  {%- set stages = stages | unique | list -%}
  {%- for stage in stages -%}
    {%- do first.append("select " ~ src_source ~ " as source, min(" ~ src_ldts ~ ") as moment from " ~ ref(stage) ~ " group by 1") -%}
  {%- endfor -%}
  {%- for source, moment in run_query("select source, cast(min(moment) as varchar) from (" ~ first | join(" union all ") ~ ") group by 1 order by 2").rows -%}
    {%- do known.append(source) -%}
    {%- do firsts.setdefault(source.split(".")[0], moment) -%}
    {%- do explained.append(src_source ~ " = " ~ cdc_vault.sql_text(source) ~ " and " ~ src_ldts ~ " >= timestamp '" ~ moment ~ "'") -%}
  {%- endfor -%}
  {%- for source, moment in firsts.items() if not keys_only -%}
    {%- do renamed.append(
      src_source ~ " not in (" ~ cdc_vault.sql_texts(known) ~ ") and split_part(" ~ src_source ~ ", '.', 1) = " ~ cdc_vault.sql_text(source)
      ~ " and " ~ src_ldts ~ " >= timestamp '" ~ moment ~ "'"
    ) -%}
  {%- endfor -%}
  {%- if stages | length > 1 and renamed -%}
    {%- for row in run_query("select distinct " ~ src_source ~ " from " ~ this ~ " where " ~ renamed | join(" or ") ~ " order by 1").rows -%}
      {{ exceptions.raise_compiler_error(
        this ~ ": it has to be made anew, as it is declared otherwise, rows that landed late change what it has loaded, or it was put back, and it has rows of " ~ row[0]
        ~ ", which none of its stages has: of a table that was renamed, or removed."
        ~ " Build it anew from its stages with dbt's --full-refresh; rows of a table that was removed go then"
      ) }}
    {%- endfor -%}
  {%- endif -%}
  {%- set condition = src_ldts ~ " <> " ~ cdc_vault.ghost_moment() ~ " and not (" ~ ((explained + renamed) | join(" or ") or "false") ~ ")" -%}
  {{ return(condition if run_query("select 1 from " ~ this ~ " where " ~ condition ~ " limit 1").rows else none) }}
{% endmacro %}

{#-
  The query of such rows as the table is to have them; `columns` are none where it has them already. Their values are theirs, NULL in
  what is new, and their hashdiff is made of these, as the stage makes it. It refuses to lose any: a row whose keys would be
  others (`rekeyed`), for they are hashes of what may be gone, a value in a column that goes or of a type that it may not fit, and
  what only the declaration knew of the keys of a hub or link (`keys_only`).
-#}
{% macro carried_as_declared(condition, inputs, columns, keys_only=false, rekeyed=false) %}
  {%- set rows = "from " ~ this ~ " where " ~ condition -%}
  {%- if columns is none and not rekeyed -%}{{ return("select * " ~ rows) }}{%- endif -%}
  {%- set columns, there = columns or [], cdc_vault.types_of(this) -%}
  {%- set said = cdc_vault.said_by_stage(inputs[0].split(".")[0]) -%}
  {%- set of_stage = cdc_vault.stage_columns(said.source_model, said.derived_columns) if said.source_model else {} -%}
  {%- set declared = {} if keys_only else cdc_vault.types_in_stage(inputs[0].split(".")[0]) -%}
  {%- set lost, new, values = [], [], [] -%}
  {%- for name in there if columns and name not in columns | map("lower") -%}{%- do lost.append(name) -%}{%- endfor -%}
  {%- for name in columns -%}
    {%- set quoted, type, was = cdc_vault.quoted(name), declared.get(name), there.get(name | lower) -%}
    {%- if was and (type or was) == was -%}
      {%- do values.append(quoted) -%}
    {%- elif was and cdc_vault.holds_values(was, type) -%}
      {%- do values.append("cast(" ~ quoted ~ " as " ~ type ~ ") as " ~ quoted) -%}
    {%- else -%}
      {%- do (lost if was else new).append(name) -%}
      {%- do values.append("cast(null as " ~ (of_stage[name].type if name in of_stage else "varchar") ~ ") as " ~ quoted) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- do cdc_vault.refuse_losses(rows, lost, new if keys_only else [], rekeyed) -%}
  {%- set made = [] -%}
  {%- for name in columns -%}
    {%- set spec = (said.hashdiffs or {}).get(name) -%}
    {%- set is_known = spec and cdc_vault.columns_of_key(spec) | reject("in", columns) | list | length == 0 -%}
    {%- do made.append((cdc_vault.hashed_column(name, spec, of_stage) ~ " as " if is_known else "") ~ cdc_vault.quoted(name)) -%}
  {%- endfor -%}
  {{ return("select " ~ made | join(", ") ~ " from (select " ~ values | join(", ") ~ " " ~ rows ~ ")") }}
{% endmacro %}

{#- Stops a load that would lose carried rows, or what they have in the `lost` columns, with their number and the way out. -#}
{% macro refuse_losses(rows, lost, unknown, rekeyed) %}
  {%- set counts, held = ["count(*)"], [] -%}
  {%- for name in lost -%}{%- do counts.append("count(" ~ cdc_vault.quoted(name) ~ ")") -%}{%- endfor -%}
  {%- set found = run_query("select " ~ counts | join(", ") ~ " " ~ rows).rows[0] if rekeyed or lost or unknown else [] -%}
  {%- for name in lost -%}{%- if found[loop.index] -%}{%- do held.append(name) -%}{%- endif -%}{%- endfor -%}
  {%- set why = none -%}
  {%- if rekeyed -%}
    {%- set why = "cannot get the keys that are declared now. Build" -%}
  {%- elif held -%}
    {%- set why = "have values in " ~ held | join(", ") ~ " that it is not to have, or in another type. Rename the column in the table if it has another name now, or drop it there, and load it again; or build" -%}
  {%- elif unknown -%}
    {%- set why = "have no " ~ unknown | join(", ") ~ ". Add the column to the table, with their values, and load it again; or build" -%}
  {%- endif -%}
  {%- if why -%}
    {{ exceptions.raise_compiler_error(
      this ~ ": it has to be made anew, and " ~ found[0] ~ " of its rows, of which its stages say nothing any more, " ~ why
      ~ " it from its stages with dbt's --full-refresh; these rows go then"
    ) }}
  {%- endif -%}
{% endmacro %}

{#- The rows that a table keeps when it is made anew, as an addition to the others. -#}
{% macro and_carried(plan, columns) -%}
  {%- if plan.carried %}
  union all
  select {{ columns | join(", ") }} from ({{ plan.carried }})
  {%- endif %}
{%- endmacro %}
