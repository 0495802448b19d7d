{#- Written by `lakehouse scaffold`, its own while unchanged: e17f02fa25470ed5 -#}
{{ cdc_vault.timeline(
  source_model='eff_sat_transaction_store_customer',
  src_pk='hk_transaction_store_customer',
  src_hashdiff='is_active',
  src_payload=['hk_transaction'],
) }}
