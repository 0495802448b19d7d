{#- Written by `lakehouse scaffold`, its own while unchanged: 5842324aa93b3c17 -#}
{{ cdc_vault.hub(
  src_pk='hk_store',
  src_nk='store_id',
  source_model=['stg_retail__stores', 'stg_retail__transactions'],
) }}
