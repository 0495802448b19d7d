{{ current_table('payroll', 'employee') }}
