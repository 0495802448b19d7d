{{ eff_sat(src_pk='hk_account_user', src_dfk='hk_account', source_model='stg_bank__accounts') }}
