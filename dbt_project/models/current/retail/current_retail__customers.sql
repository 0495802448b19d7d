{{ current_table('retail', 'customers') }}
