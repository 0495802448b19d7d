{{ parsed_table('retail', 'stores') }}
