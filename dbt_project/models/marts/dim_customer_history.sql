{{ cdc_vault.history(
  source_model='hub_customer',
  src_pk='hk_customer',
  src_nk='customer_id',
  satellites={
    'sat_customer_pii': ['first_name', 'last_name', 'email'],
    'sat_customer_loyalty': ['loyalty_tier', 'created_at'],
  },
) }}
