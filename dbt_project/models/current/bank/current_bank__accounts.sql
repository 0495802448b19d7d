{#- Written by `lakehouse scaffold`, its own while unchanged: 4af4bcdd7e706504 -#}
{{ cdc_vault.current_table('bank', 'accounts') }}
