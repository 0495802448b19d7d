{{ hub(src_pk='hk_store', src_nk='store_id', source_model=['stg_retail__stores', 'stg_retail__transactions']) }}
