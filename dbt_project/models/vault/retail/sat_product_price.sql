{#- Written by `lakehouse scaffold`, its own while unchanged: 03404beaa081e2a8 -#}
{{ cdc_vault.sat(
  src_pk='hk_product',
  src_hashdiff='hd_product_price',
  src_payload=['unit_price'],
  source_model='stg_retail__products',
) }}
