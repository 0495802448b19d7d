{#- Written by `lakehouse scaffold`, its own while unchanged: 4bb6d780c899bc53 -#}
{{ parsed_table('bank', 'users') }}
