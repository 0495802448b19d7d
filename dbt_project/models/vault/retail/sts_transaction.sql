{{ sts_sat(src_pk='hk_transaction', source_model='stg_retail__transactions') }}
