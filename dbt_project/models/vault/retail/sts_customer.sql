{#- Written by `lakehouse scaffold`, its own while unchanged: fc6968b4b55bc308 -#}
{{ cdc_vault.sts_sat(src_pk='hk_customer', source_model='stg_retail__customers') }}
