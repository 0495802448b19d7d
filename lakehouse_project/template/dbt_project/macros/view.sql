{#- The package's view instead of the adapter's, which only a project itself may replace. -#}
{% materialization view, adapter='trino' %}
  {{ return(cdc_vault.materialization_view_trino()) }}
{% endmaterialization %}
