{#- Written by `lakehouse scaffold`, its own while unchanged: 9a87646b970b6a5d -#}
{{ cdc_vault.current_table('retail', 'customers') }}
