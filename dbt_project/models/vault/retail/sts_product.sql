{#- Written by `lakehouse scaffold`, its own while unchanged: bb6fd6212a8ad21d -#}
{{ cdc_vault.sts_sat(src_pk='hk_product', source_model='stg_retail__products', src_nk=['product_id']) }}
