{#- The only place that quotes names and texts, as lakehouse/text/sql.py is in Python: a source may call its columns anything. -#}

{#- A quoted name. Trino calls columns in lower case, and does not find İ, whose lower case is two letters, by itself. -#}
{% macro quoted(name) -%}
  "{{ name | replace("İ", "İ" | lower) | replace('"', '""') }}"
{%- endmacro %}

{% macro quoted_names(columns) %}
  {%- for column in columns %}{{ cdc_vault.quoted(column.name) }}{{ ", " if not loop.last }}{% endfor -%}
{% endmacro %}

{% macro sql_text(text) -%}
  '{{ text | replace("'", "''") }}'
{%- endmacro %}

{% macro sql_texts(texts) %}
  {%- for text in texts %}{{ cdc_vault.sql_text(text) }}{{ ", " if not loop.last }}{% endfor -%}
{% endmacro %}

{#- Names as the vault's SQL spells them: quoted where they are no plain name, or a word that Trino reserves. -#}
{% macro spelled(names) %}
  {%- set reserved = "
    alter and as between by case cast constraint create cross cube current_catalog current_date current_path
    current_role current_schema current_time current_timestamp current_user deallocate delete describe distinct drop
    else end escape except execute exists extract false for from full group grouping having in inner insert
    intersect into is join json_array json_exists json_object json_query json_table json_value left like listagg
    localtime localtimestamp natural normalize not null on or order outer prepare recursive right rollup select skip
    table then trim true uescape union unnest using values when where with
  ".split() -%}
  {%- set found = [] -%}
  {%- for name in ([names] if names is string else names) -%}
    {%- do found.append(name if modules.re.match("[a-z_][a-z0-9_]*\\Z", name) and name not in reserved else cdc_vault.quoted(name)) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}

{#- Refuses columns that bear a name the layer itself gives (`own`), or one of those that its SQL uses inside. -#}
{% macro check_names(table, columns, own) %}
  {%- for column in columns if column.name | lower in own or (column.name | lower).startswith("_lh_") -%}
    {{ exceptions.raise_compiler_error(
      table ~ ": column " ~ column.name ~ " bears a name that the lake keeps for itself: declare meta.raw.alias, "
      ~ tojson({column.source_name or column.name: "another_name"})
    ) }}
  {%- endfor -%}
{% endmacro %}
