{#- Written by `lakehouse scaffold`, its own while unchanged: fb4c5a4d252563e5 -#}
{{ sat(
  src_pk='hk_product',
  src_hashdiff='hd_product_price',
  src_payload=['unit_price'],
  source_model='stg_retail__products',
) }}
