{{ cdc_vault.pit(source_model='hub_account', src_pk='hk_account', satellites=['sat_account_details', 'sts_account']) }}
