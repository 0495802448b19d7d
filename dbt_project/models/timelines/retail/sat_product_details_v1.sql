{#- Written by `lakehouse scaffold`, its own while unchanged: b806d1079a74074f -#}
{{ cdc_vault.timeline(
  source_model='sat_product_details',
  src_pk='hk_product',
  src_hashdiff='hd_product_details',
  src_payload=['product_name', 'category', 'created_at'],
) }}
