{#- Written by `lakehouse scaffold`, its own while unchanged: 0969c71c8720fe54 -#}
{{ parsed_table('retail', 'products') }}
