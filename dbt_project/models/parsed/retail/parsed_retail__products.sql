{{ parsed_table('retail', 'products') }}
