{{ current_table('retail', 'stores') }}
