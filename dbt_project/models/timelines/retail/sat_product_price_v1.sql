{#- Written by `lakehouse scaffold`, its own while unchanged: 9aa687dbfb92136a -#}
{{ cdc_vault.timeline(
  source_model='sat_product_price',
  src_pk='hk_product',
  src_hashdiff='hd_product_price',
  src_payload=['unit_price'],
) }}
