{{ current_table('retail', 'transactions') }}
