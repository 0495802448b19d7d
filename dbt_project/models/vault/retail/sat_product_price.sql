{#- Written by `lakehouse scaffold`, its own while unchanged: 346e51d0f3b13a4d -#}
{{ cdc_vault.sat(
  src_pk='hk_product',
  src_hashdiff='hd_product_price',
  src_payload=['unit_price'],
  source_model='stg_retail__products',
  src_nk=['product_id'],
) }}
