{#- Written by `lakehouse scaffold`, its own while unchanged: a5125a3c1ad6e781 -#}
{{ cdc_vault.parsed_table('bank', 'users') }}
