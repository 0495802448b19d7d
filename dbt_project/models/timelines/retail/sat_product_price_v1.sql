{#- Written by `lakehouse scaffold`, its own while unchanged: 6e7c3903655f872c -#}
{{ timeline(
  source_model='sat_product_price',
  src_pk='hk_product',
  src_hashdiff='hd_product_price',
  src_payload=['unit_price'],
) }}
