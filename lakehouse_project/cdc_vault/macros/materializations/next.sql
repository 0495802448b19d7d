{#-
  Tables that are built whole are built beside the ones that readers see, tested there, and published together when all
  of it is done. `LAKEHOUSE_NEXT` says so; whoever sets it has put a copy of each such table, at its present state, into
  the schema `<schema>_next`, which readers may not read, and publishes it afterwards, with the descriptions of its columns.
  Without it a table is built in place.
-#}
{% macro next_of(relation) %}
  {{ return(relation.incorporate(path={"schema": relation.schema ~ "_next"}) if env_var("LAKEHOUSE_NEXT", "") else relation) }}
{% endmacro %}

{#- What a model or test reads: the next state of a table that is built whole. A view goes on naming the table itself. -#}
{% macro next_of_ref(relation) %}
  {%- if model.resource_type == "test" or model.config.materialized == "rebuilt_table" -%}
    {%- if relation.schema ~ "." ~ relation.identifier in cdc_vault.built_whole() -%}
      {{ return(cdc_vault.next_of(relation)) }}
    {%- endif -%}
  {%- endif -%}
  {{ return(relation) }}
{% endmacro %}

{#- The tables that are built whole, as `schema.table`: a project of many models is gone through once. -#}
{% macro built_whole() %}
  {%- if "lakehouse_whole" not in graph -%}
    {%- set found = {} -%}
    {%- for node in graph.nodes.values() if node.config.materialized == "rebuilt_table" -%}
      {%- do found.update({node.schema ~ "." ~ node.alias: true}) -%}
    {%- endfor -%}
    {%- do graph.update(lakehouse_whole=found) -%}
  {%- endif -%}
  {{ return(graph.lakehouse_whole) }}
{% endmacro %}
