{#- Written by `lakehouse scaffold`, its own while unchanged: ce676ae24921abf1 -#}
{{ timeline(
  source_model='sat_customer_loyalty',
  src_pk='hk_customer',
  src_hashdiff='hd_customer_loyalty',
  src_payload=['loyalty_tier', 'created_at'],
) }}
