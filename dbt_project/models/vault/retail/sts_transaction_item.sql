{#- Written by `lakehouse scaffold`, its own while unchanged: 2895ba884afe504e -#}
{{ sts_sat(src_pk='hk_transaction_item', source_model='stg_retail__transaction_items') }}
