{{ link(src_pk='hk_account_user', src_fk=['hk_account', 'hk_user'], source_model='stg_bank__accounts') }}
