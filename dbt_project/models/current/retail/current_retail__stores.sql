{#- Written by `lakehouse scaffold`, its own while unchanged: 7de10959fef5f832 -#}
{{ cdc_vault.current_table('retail', 'stores') }}
