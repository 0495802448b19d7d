{#- Written by `lakehouse scaffold`, its own while unchanged: 81b32735d781a832 -#}
{{ cdc_vault.sat(
  src_pk='hk_product',
  src_hashdiff='hd_product_details',
  src_payload=['product_name', 'category', 'created_at'],
  source_model='stg_retail__products',
  src_nk=['product_id'],
) }}
