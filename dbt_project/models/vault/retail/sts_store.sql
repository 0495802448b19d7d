{{ sts_sat(src_pk='hk_store', source_model='stg_retail__stores') }}
