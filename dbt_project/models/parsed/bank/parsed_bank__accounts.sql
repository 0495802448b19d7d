{#- Written by `lakehouse scaffold`, its own while unchanged: 5ac91890d37f55ff -#}
{{ parsed_table('bank', 'accounts') }}
