{#- Written by `lakehouse scaffold`, its own while unchanged: 04245e2d2917f4f8 -#}
{{ cdc_vault.timeline(
  source_model='sat_customer_loyalty',
  src_pk='hk_customer',
  src_hashdiff='hd_customer_loyalty',
  src_payload=['loyalty_tier', 'created_at'],
) }}
