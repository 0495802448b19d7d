{#- Written by `lakehouse scaffold`, its own while unchanged: f4063161e65a2ba5 -#}
{{ hub(src_pk='hk_transaction_item', src_nk='item_id', source_model=['stg_retail__transaction_items']) }}
