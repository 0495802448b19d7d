{#- Written by `lakehouse scaffold`, its own while unchanged: dea6e0f1bc84943b -#}
{{ current_table('bank', 'users') }}
