{#- Written by `lakehouse scaffold`, its own while unchanged: b6fba86ae46a69d6 -#}
{{ sts_sat(src_pk='hk_product', source_model='stg_retail__products') }}
