{#- Written by `lakehouse scaffold`, its own while unchanged: 05b4705b650e318a -#}
{{ timeline(
  source_model='eff_sat_transaction_store_customer',
  src_pk='hk_transaction_store_customer',
  src_hashdiff='is_active',
  src_payload=['hk_transaction'],
) }}
