{#- Written by `lakehouse scaffold`, its own while unchanged: d9b0d093ba751375 -#}
{{ cdc_vault.hub(
  src_pk='hk_customer',
  src_nk='customer_id',
  source_model=['stg_retail__customers', 'stg_retail__transactions'],
) }}
