{#- Written by `lakehouse scaffold`, its own while unchanged: d8e18d0b3874f06a -#}
{{ sat(
  src_pk='hk_customer',
  src_hashdiff='hd_customer_loyalty',
  src_payload=['loyalty_tier', 'created_at'],
  source_model='stg_retail__customers',
) }}
