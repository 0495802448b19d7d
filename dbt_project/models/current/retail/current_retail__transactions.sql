{#- Written by `lakehouse scaffold`, its own while unchanged: 5b638cfa13244e6a -#}
{{ current_table('retail', 'transactions') }}
