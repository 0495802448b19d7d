{#- Written by `lakehouse scaffold`, its own while unchanged: f683e5f560acc3ee -#}
{{ current_table('retail', 'products') }}
