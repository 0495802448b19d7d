{{ cdc_vault.pit(source_model='hub_store', src_pk='hk_store', satellites=['sat_store_details', 'sts_store']) }}
