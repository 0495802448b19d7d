{#- Written by `lakehouse scaffold`, its own while unchanged: 746515bf3c661835 -#}
{{ cdc_vault.parsed_table('retail', 'transaction_items') }}
