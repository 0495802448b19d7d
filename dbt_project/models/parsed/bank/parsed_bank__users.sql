{{ parsed_table('bank', 'users') }}
