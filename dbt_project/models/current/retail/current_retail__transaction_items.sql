{{ current_table('retail', 'transaction_items') }}
