{{ link(src_pk='hk_transaction_item_transaction', src_fk=['hk_transaction_item', 'hk_transaction'], source_model='stg_retail__transaction_items') }}
