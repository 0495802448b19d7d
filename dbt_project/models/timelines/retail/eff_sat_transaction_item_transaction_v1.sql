{#- Written by `lakehouse scaffold`, its own while unchanged: ccc5bf04d9956f86 -#}
{{ cdc_vault.timeline(
  source_model='eff_sat_transaction_item_transaction',
  src_pk='hk_transaction_item_transaction',
  src_hashdiff='is_active',
  src_payload=['hk_transaction_item'],
) }}
