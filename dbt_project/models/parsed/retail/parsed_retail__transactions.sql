{#- Written by `lakehouse scaffold`, its own while unchanged: d34c66d11d6c51fb -#}
{{ cdc_vault.parsed_table('retail', 'transactions') }}
