{#-
  dbt's unit tests put down the columns of a result in a temporary table, which Trino does not have: it makes a real one,
  and a test that failed leaves it behind. So it is dropped before it is made.
-#}
{% macro get_create_table_as_sql(temporary, relation, sql) -%}
  {%- if temporary -%}{%- do adapter.drop_relation(relation) -%}{%- endif -%}
  {{ create_table_as(temporary, relation, sql) }}
{%- endmacro %}
