{#- Written by `lakehouse scaffold`, its own while unchanged: d2b6cc8699972231 -#}
{{ parsed_table('retail', 'transaction_items') }}
