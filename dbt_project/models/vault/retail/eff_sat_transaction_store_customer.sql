{#- Written by `lakehouse scaffold`, its own while unchanged: d809bdacee88be71 -#}
{{ eff_sat(
  src_pk='hk_transaction_store_customer',
  src_dfk='hk_transaction',
  source_model='stg_retail__transactions',
) }}
