{{ sts_sat(src_pk='hk_customer', source_model='stg_retail__customers') }}
