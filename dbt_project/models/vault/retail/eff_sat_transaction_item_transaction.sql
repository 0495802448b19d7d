{{ eff_sat(src_pk='hk_transaction_item_transaction', src_dfk='hk_transaction_item', source_model='stg_retail__transaction_items') }}
