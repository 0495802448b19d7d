{{ cdc_vault.pit(source_model='hub_user', src_pk='hk_user', satellites=['sat_user_details', 'sts_user']) }}
