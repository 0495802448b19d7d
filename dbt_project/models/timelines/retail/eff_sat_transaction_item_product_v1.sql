{#- Written by `lakehouse scaffold`, its own while unchanged: 3e59bc3cca3c3dde -#}
{{ cdc_vault.timeline(
  source_model='eff_sat_transaction_item_product',
  src_pk='hk_transaction_item_product',
  src_hashdiff='is_active',
  src_payload=['hk_transaction_item'],
) }}
