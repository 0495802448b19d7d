{{ current_table('bank', 'accounts') }}
