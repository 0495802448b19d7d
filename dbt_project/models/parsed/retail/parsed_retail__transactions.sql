{{ parsed_table('retail', 'transactions') }}
