{#- Written by `lakehouse scaffold`, its own while unchanged: e92b3b64bcf64abb -#}
{{ current_table('retail', 'customers') }}
