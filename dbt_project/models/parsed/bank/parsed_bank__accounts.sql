{{ parsed_table('bank', 'accounts') }}
