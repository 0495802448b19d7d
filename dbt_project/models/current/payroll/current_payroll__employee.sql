{#- Written by `lakehouse scaffold`, its own while unchanged: cd14133a3b9c65d6 -#}
{{ current_table('payroll', 'employee') }}
