{#- Written by `lakehouse scaffold`, its own while unchanged: e6b1e45263c2e912 -#}
{{ cdc_vault.sat(
  src_pk='hk_customer',
  src_hashdiff='hd_customer_loyalty',
  src_payload=['loyalty_tier', 'created_at'],
  source_model='stg_retail__customers',
) }}
