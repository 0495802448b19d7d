{#- Written by `lakehouse scaffold`, its own while unchanged: e9705929b24b4388 -#}
{{ cdc_vault.sts_sat(src_pk='hk_store', source_model='stg_retail__stores', src_nk=['store_id']) }}
