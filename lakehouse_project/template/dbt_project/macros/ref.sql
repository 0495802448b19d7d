{#- While the marts are built beside the ones that readers see, they and their tests read one another there. -#}
{% macro ref() %}
  {%- set relation = builtins.ref(*varargs, **kwargs) -%}
  {{ return(cdc_vault.next_of_ref(relation) if execute and env_var("LAKEHOUSE_NEXT", "") else relation) }}
{% endmacro %}
