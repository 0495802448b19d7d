{#-
  Which columns of a parsed table have nulls in rows whose loads left them out, because they were not declared then. The
  table notes it in a property (JSON), which a load writes before it inserts: one that is killed in between leaves a column
  that is made anew for nothing, and none that is trusted wrongly. Whoever makes the table anew has them all, and says so.
-#}

{% macro left_out_property() -%}
  lakehouse.left-out
{%- endmacro %}

{#-
  The names of these columns, in lower case. A table of a release that noted nothing is compared with raw, once; none where
  it cannot be, as no cut covers it.
-#}
{% macro columns_left_out(source_name, table_name, raw, columns, loaded, noted) %}
  {%- if noted -%}{{ return(fromjson(noted)) }}{%- endif -%}
  {%- set bounds = cdc_vault.run_bounds(source_name) -%}
  {%- if bounds is none or bounds.epoch is none or table_name not in bounds.tables -%}{{ return(none) }}{%- endif -%}
  {{ return(cdc_vault.columns_with_fewer_values(raw, columns, loaded)) }}
{% endmacro %}

{#-
  The declared columns that have fewer values in parsed than in raw, of the rows of any one moment, where both have all of
  these. A value that a row leaves out counts as one, since parsed has it from the version before.
-#}
{% macro columns_with_fewer_values(raw, columns, loaded) %}
  {%- set landed, compared, found = cdc_vault.types_of(raw), [], [] -%}
  {%- for column in columns if not column.is_key and column.name | lower in loaded and column.name | lower in landed -%}{%- do compared.append(column) -%}{%- endfor -%}
  {%- if not compared -%}{{ return([]) }}{%- endif -%}
  {%- set counts -%}
    select
      {%- for column in compared %}
      count_if(in_raw._lh_values_{{ loop.index }} > in_parsed._lh_values_{{ loop.index }}){{ "," if not loop.last }}
      {%- endfor %}
    from (
      select _ingested_at as _lh_moment, count(*) as _lh_rows
        {%- for column in compared %},
        count_if({{ cdc_vault.quoted(column.name) }} is not null or coalesce(contains(_unchanged, {{ cdc_vault.sql_text(column.name) }}), false)) as _lh_values_{{ loop.index }}
        {%- endfor %}
      from {{ raw }}
      where _op not in ('d', 't')
      group by 1
    ) as in_raw
    join (
      select _loaded_at as _lh_moment, count(*) as _lh_rows
        {%- for column in compared %},
        count({{ cdc_vault.quoted(column.name) }}) as _lh_values_{{ loop.index }}
        {%- endfor %}
      from {{ this }}
      where _op not in ('d', 't')
      group by 1
    ) as in_parsed on in_parsed._lh_moment = in_raw._lh_moment and in_parsed._lh_rows = in_raw._lh_rows
  {%- endset -%}
  {%- set fewer = run_query(counts).rows[0] -%}
  {%- for column in compared -%}
    {%- if fewer[loop.index0] -%}{%- do found.append(column.name | lower) -%}{%- endif -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#-
  What the table is to note of this load; none where it does already, or where nothing is known. Of a column that is not
  declared when the first note is made, nobody knows what loads of an earlier release have left out.
-#}
{% macro note_of_left_out(anew, new_data, left_out, noted, columns, loaded) %}
  {%- if anew or not loaded -%}{{ return("[]" if new_data else none) }}{%- endif -%}
  {%- if left_out is none -%}{{ return(none) }}{%- endif -%}
  {%- set own = cdc_vault.parsed_columns(columns) | map(attribute="name") | map("lower") | list -%}
  {%- set undeclared = loaded | reject("in", own) | list if new_data or not noted else [] -%}
  {%- set note = tojson((left_out + undeclared) | unique | sort) -%}
  {{ return(none if note == noted else note) }}
{% endmacro %}
