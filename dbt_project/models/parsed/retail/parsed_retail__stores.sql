{#- Written by `lakehouse scaffold`, its own while unchanged: a7cf507ce7e996cf -#}
{{ parsed_table('retail', 'stores') }}
