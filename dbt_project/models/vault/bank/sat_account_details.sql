{#- Written by `lakehouse scaffold`, its own while unchanged: c414a3af5a241dfc -#}
{{ cdc_vault.sat(
  src_pk='hk_account',
  src_hashdiff='hd_account_details',
  src_payload=['currency', 'balance', 'created_at'],
  source_model='stg_bank__accounts',
  src_nk=['id'],
) }}
