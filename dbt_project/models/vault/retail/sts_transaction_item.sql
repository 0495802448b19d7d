{#- Written by `lakehouse scaffold`, its own while unchanged: 12b3bdb23e407205 -#}
{{ cdc_vault.sts_sat(src_pk='hk_transaction_item', source_model='stg_retail__transaction_items', src_nk=['item_id']) }}
