{#- Written by `lakehouse scaffold`, its own while unchanged: e7b627921e1e01de -#}
{{ cdc_vault.sat(
  src_pk='hk_product',
  src_hashdiff='hd_product_details',
  src_payload=['product_name', 'category', 'created_at'],
  source_model='stg_retail__products',
) }}
