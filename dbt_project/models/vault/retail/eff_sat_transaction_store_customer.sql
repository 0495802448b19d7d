{#- Written by `lakehouse scaffold`, its own while unchanged: e28599bb172f5a17 -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_transaction_store_customer',
  src_dfk='hk_transaction',
  source_model='stg_retail__transactions',
  src_nk=['txn_id'],
) }}
