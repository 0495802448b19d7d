{#- A model's schema is exactly the layer it is configured with: parsed, vault, marts, meta. -#}
{% macro generate_schema_name(custom_schema_name, node) -%}
  {{ custom_schema_name or target.schema }}
{%- endmacro %}
