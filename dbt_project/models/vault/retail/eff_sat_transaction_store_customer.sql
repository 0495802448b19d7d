{#- Written by `lakehouse scaffold`, its own while unchanged: 27dbe9bdeeeba6f8 -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_transaction_store_customer',
  src_dfk='hk_transaction',
  source_model='stg_retail__transactions',
) }}
