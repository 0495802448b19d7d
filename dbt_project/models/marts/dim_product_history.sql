{{ cdc_vault.history(
  source_model='hub_product',
  src_pk='hk_product',
  src_nk='product_id',
  satellites={
    'sat_product_details': ['product_name', 'category', 'created_at'],
    'sat_product_price': ['unit_price'],
  },
) }}
