{#- Written by `lakehouse scaffold`, its own while unchanged: 44b5ecb4e2335cd1 -#}
{{ cdc_vault.parsed_table('retail', 'stores') }}
