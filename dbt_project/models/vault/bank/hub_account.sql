{{ hub(src_pk='hk_account', src_nk='account_id', source_model=['stg_bank__accounts']) }}
