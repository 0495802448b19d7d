{{ sts_sat(src_pk='hk_user', source_model='stg_bank__users') }}
