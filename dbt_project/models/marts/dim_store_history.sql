{{ cdc_vault.history(
  source_model='hub_store',
  src_pk='hk_store',
  src_nk='store_id',
  satellites={
    'sat_store_details': ['store_name', 'city', 'state', 'opened_at'],
  },
) }}
