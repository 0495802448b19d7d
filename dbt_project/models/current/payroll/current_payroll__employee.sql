{#- Written by `lakehouse scaffold`, its own while unchanged: 9a41bde79ce27a26 -#}
{{ cdc_vault.current_table('payroll', 'employee') }}
