{{ hub(src_pk='hk_product', src_nk='product_id', source_model=['stg_retail__products', 'stg_retail__transaction_items']) }}
