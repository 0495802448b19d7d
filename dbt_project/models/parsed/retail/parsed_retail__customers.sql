{{ parsed_table('retail', 'customers') }}
