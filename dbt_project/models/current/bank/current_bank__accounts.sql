{#- Written by `lakehouse scaffold`, its own while unchanged: cdda316bea8234fb -#}
{{ current_table('bank', 'accounts') }}
