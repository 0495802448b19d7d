{{ sts_sat(src_pk='hk_product', source_model='stg_retail__products') }}
