{#- Written by `lakehouse scaffold`, its own while unchanged: 575c6599ed001701 -#}
{{ cdc_vault.sat(
  src_pk='hk_account',
  src_hashdiff='hd_account_details',
  src_payload=['currency', 'balance', 'created_at'],
  source_model='stg_bank__accounts',
) }}
