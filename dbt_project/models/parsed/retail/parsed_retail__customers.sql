{#- Written by `lakehouse scaffold`, its own while unchanged: 84434d48df383f22 -#}
{{ cdc_vault.parsed_table('retail', 'customers') }}
