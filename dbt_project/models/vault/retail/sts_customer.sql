{#- Written by `lakehouse scaffold`, its own while unchanged: 5161e44b349a9748 -#}
{{ cdc_vault.sts_sat(src_pk='hk_customer', source_model='stg_retail__customers', src_nk=['customer_id']) }}
