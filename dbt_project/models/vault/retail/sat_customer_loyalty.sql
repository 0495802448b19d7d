{#- Written by `lakehouse scaffold`, its own while unchanged: 579c7337512c79ee -#}
{{ cdc_vault.sat(
  src_pk='hk_customer',
  src_hashdiff='hd_customer_loyalty',
  src_payload=['loyalty_tier', 'created_at'],
  source_model='stg_retail__customers',
  src_nk=['customer_id'],
) }}
