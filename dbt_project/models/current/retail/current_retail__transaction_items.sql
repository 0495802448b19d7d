{#- Written by `lakehouse scaffold`, its own while unchanged: fa8e644eb4b6d7dd -#}
{{ current_table('retail', 'transaction_items') }}
