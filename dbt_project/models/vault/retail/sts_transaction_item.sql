{#- Written by `lakehouse scaffold`, its own while unchanged: bf196ac340fe9387 -#}
{{ cdc_vault.sts_sat(src_pk='hk_transaction_item', source_model='stg_retail__transaction_items') }}
