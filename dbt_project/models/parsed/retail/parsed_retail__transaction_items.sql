{{ parsed_table('retail', 'transaction_items') }}
