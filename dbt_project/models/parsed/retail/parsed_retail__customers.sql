{#- Written by `lakehouse scaffold`, its own while unchanged: 4128f0d456d4bdd9 -#}
{{ parsed_table('retail', 'customers') }}
