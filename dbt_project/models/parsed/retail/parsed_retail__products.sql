{#- Written by `lakehouse scaffold`, its own while unchanged: f1ffe694209ecb5c -#}
{{ cdc_vault.parsed_table('retail', 'products') }}
