{{ parsed_table('payroll', 'employee') }}
