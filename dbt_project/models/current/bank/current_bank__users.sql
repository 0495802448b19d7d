{{ current_table('bank', 'users') }}
