{#- Written by `lakehouse scaffold`, its own while unchanged: 0d76e073adbd46af -#}
{{ cdc_vault.stage(
  source_model='parsed_retail__products',
  hashed_columns={
    'hk_product': ['product_id'],
    'hd_product_details': {'is_hashdiff': true, 'columns': ['product_name', 'category', 'created_at']},
    'hd_product_price': {'is_hashdiff': true, 'columns': ['unit_price']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
