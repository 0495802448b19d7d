{#- Written by `lakehouse scaffold`, its own while unchanged: a1e02fe228f82530 -#}
{{ cdc_vault.current_table('retail', 'transactions') }}
