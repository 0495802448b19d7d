{{ sts_sat(src_pk='hk_account', source_model='stg_bank__accounts') }}
