{#- Written by `lakehouse scaffold`, its own while unchanged: 1e59c559705b1f00 -#}
{{ sat(
  src_pk='hk_product',
  src_hashdiff='hd_product_details',
  src_payload=['product_name', 'category', 'created_at'],
  source_model='stg_retail__products',
) }}
