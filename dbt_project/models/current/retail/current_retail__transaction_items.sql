{#- Written by `lakehouse scaffold`, its own while unchanged: 054edbee0e7d21d9 -#}
{{ cdc_vault.current_table('retail', 'transaction_items') }}
