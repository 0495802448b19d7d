{#- Written by `lakehouse scaffold`, its own while unchanged: 647ad10f2a171469 -#}
{{ timeline(
  source_model='eff_sat_transaction_item_transaction',
  src_pk='hk_transaction_item_transaction',
  src_hashdiff='is_active',
  src_payload=['hk_transaction_item'],
) }}
