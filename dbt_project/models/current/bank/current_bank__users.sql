{#- Written by `lakehouse scaffold`, its own while unchanged: aa50ffb2f3d4ae83 -#}
{{ cdc_vault.current_table('bank', 'users') }}
