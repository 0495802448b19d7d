{#- Written by `lakehouse scaffold`, its own while unchanged: 68efffba585205a8 -#}
{{ hub(
  src_pk='hk_customer',
  src_nk='customer_id',
  source_model=['stg_retail__customers', 'stg_retail__transactions'],
) }}
