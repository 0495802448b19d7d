{{ cdc_vault.pit(source_model='hub_customer', src_pk='hk_customer', satellites=['sat_customer_pii', 'sat_customer_loyalty', 'sts_customer']) }}
