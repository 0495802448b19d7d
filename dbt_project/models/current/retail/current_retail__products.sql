{{ current_table('retail', 'products') }}
