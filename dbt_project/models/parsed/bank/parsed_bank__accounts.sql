{#- Written by `lakehouse scaffold`, its own while unchanged: 323f88885623823d -#}
{{ cdc_vault.parsed_table('bank', 'accounts') }}
