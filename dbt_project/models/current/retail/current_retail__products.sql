{#- Written by `lakehouse scaffold`, its own while unchanged: 7d4b01dd26eaf847 -#}
{{ cdc_vault.current_table('retail', 'products') }}
