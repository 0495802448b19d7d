{{ hub(src_pk='hk_transaction_item', src_nk='item_id', source_model=['stg_retail__transaction_items']) }}
