{#- Written by `lakehouse scaffold`, its own while unchanged: 1ca4e0762c053d65 -#}
{{ current_table('retail', 'stores') }}
