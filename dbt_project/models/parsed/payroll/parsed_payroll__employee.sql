{#- Written by `lakehouse scaffold`, its own while unchanged: d24df51d89a2e40c -#}
{{ parsed_table('payroll', 'employee') }}
