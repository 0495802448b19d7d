{{ cdc_vault.pit(source_model='hub_product', src_pk='hk_product', satellites=['sat_product_details', 'sat_product_price', 'sts_product']) }}
