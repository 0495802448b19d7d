{#- Written by `lakehouse scaffold`, its own while unchanged: 3ba3c7e79844ca34 -#}
{{ cdc_vault.sts_sat(src_pk='hk_product', source_model='stg_retail__products') }}
