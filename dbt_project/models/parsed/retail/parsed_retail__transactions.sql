{#- Written by `lakehouse scaffold`, its own while unchanged: d99712f26e805c1f -#}
{{ parsed_table('retail', 'transactions') }}
