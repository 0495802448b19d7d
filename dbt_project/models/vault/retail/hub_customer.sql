{{ hub(src_pk='hk_customer', src_nk='customer_id', source_model=['stg_retail__customers', 'stg_retail__transactions']) }}
