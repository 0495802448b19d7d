{#- Written by `lakehouse scaffold`, its own while unchanged: 46cb194487972ecb -#}
{{ cdc_vault.parsed_table('payroll', 'employee') }}
